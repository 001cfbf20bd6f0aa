"""Columns that hold values of the protocol."""

from typing import Any

from sqlalchemy import JSON, Dialect, Integer, TypeDecorator

from covey.protocol.eip712 import to_dict
from covey.protocol.messages import Verdict
from covey.protocol.verdict import Decision


class VerdictColumn(TypeDecorator[Verdict]):
    """A signed verdict, stored as JSON."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Verdict | None, dialect: Dialect) -> dict[str, Any] | None:
        return None if value is None else to_dict(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Verdict | None:
        return None if value is None else Verdict(**value)


class DecisionColumn(TypeDecorator[Decision]):
    """A decision, stored as its number."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Decision | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Decision | None:
        return None if value is None else Decision(value)
