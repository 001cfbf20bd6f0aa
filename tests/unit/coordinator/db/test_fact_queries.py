"""Facts are named numbers, which a transaction reads by one query."""

import pytest
from sqlalchemy import event

from coordinator.db.database import Database

pytestmark = pytest.mark.unit


def test_get_fact__never_set_or_set_before__is_zero_or_its_value(database: Database):
    with database.write() as rows:
        assert rows.get_fact("lease") == 0
        rows.set_fact("lease", 7)
        rows.set_fact("lease", 8)
        rows.set_fact("turns", 1)
        assert (rows.get_fact("lease"), rows.get_fact("turns")) == (8, 1)
    with database.read() as rows:
        assert (rows.get_fact("lease"), rows.get_fact("turns"), rows.get_fact("other")) == (8, 1, 0)


def test_set_fact__transaction_fails__is_undone(database: Database):
    with database.write() as rows:
        rows.set_fact("lease", 7)
    with pytest.raises(KeyError), database.write() as rows:
        rows.set_fact("lease", 8)
        raise KeyError
    with database.read() as rows:
        assert rows.get_fact("lease") == 7


def test_get_fact__many_in_one_transaction__are_one_query(database: Database):
    with database.write() as rows:
        rows.set_fact("lease", 7)
    statements: list[str] = []
    with database.read() as rows:
        event.listen(
            rows.session.get_bind(), "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
        )
        assert [rows.get_fact(name) for name in ("lease", "turns", "heard")] == [7, 0, 0]
    assert len([each for each in statements if "facts" in each]) == 1
