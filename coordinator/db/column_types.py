"""Column types for values of the protocol."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import JSON, BigInteger, Dialect, Integer, TypeDecorator

from covey.protocol.eip712 import to_dict
from covey.protocol.messages import Verdict
from covey.protocol.running_sums import ItemSum, Sums
from covey.protocol.verdict import Decision

Number = BigInteger().with_variant(Integer, "sqlite")
"""Type of a column of 64-bit integers. SQLite can also autoincrement such a column as a primary key."""


class VerdictColumn(TypeDecorator[Verdict]):
    """A signed verdict, stored as JSON."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Verdict | None, dialect: Dialect) -> dict[str, Any] | None:
        return None if value is None else to_dict(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Verdict | None:
        return None if value is None else Verdict(**value)


class SumsColumn(TypeDecorator[Sums]):
    """Sums of one submission, stored as JSON. An empty mapping is stored as NULL."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Sums | None, dialect: Dialect) -> dict[str, Any] | None:
        return dump_sums(value) if value else None

    def process_result_value(self, value: Any, dialect: Dialect) -> Sums | None:
        return None if value is None else load_sums(value)


class ValidatorSumsColumn(TypeDecorator[Mapping[str, Sums]]):
    """Sums by the address of the validator that reported them, stored as JSON."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, Sums] | None, dialect: Dialect) -> dict[str, Any]:
        return {validator: dump_sums(sums) for validator, sums in (value or {}).items()}

    def process_result_value(self, value: Any, dialect: Dialect) -> Mapping[str, Sums]:
        return {validator: load_sums(sums) for validator, sums in value.items()}


def dump_sums(sums: Sums) -> dict[str, Any]:
    """Return sums as JSON values."""
    return {name: each.model_dump() for name, each in sums.items()}


def load_sums(values: Mapping[Any, Any]) -> Sums:
    """Return sums from the JSON values of `dump_sums`."""
    return {name: ItemSum(**each) for name, each in values.items()}


class DecisionColumn(TypeDecorator[Decision]):
    """A decision, stored as its integer value."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Decision | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Decision | None:
        return None if value is None else Decision(value)
