"""At most one process leads, and another one does after it."""

import pytest
from sqlalchemy import text

from coordinator.db import leadership
from coordinator.db.database import Database
from coordinator.db.leadership import PostgresLeadership

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "LOOK_S", 0.0)


def test_is_held__two_that_share_a_database__one_leads_and_then_the_other(database: Database):
    first, second = database.open_leadership("beat"), database.open_leadership("beat")
    other = database.open_leadership("another")
    assert [first.is_held(), second.is_held(), first.is_held(), other.is_held()] == [True, False, True, True]
    first.close()
    assert [second.is_held(), first.is_held()] == [True, False]
    second.close()
    other.close()


def test_is_held__connection_is_lost__is_lost_with_it(database: Database):
    first = database.open_leadership("beat")
    assert first.is_held()
    if isinstance(first, PostgresLeadership):
        session = first._connection.connection.dbapi_connection.info.backend_pid
        with database._engine.connect() as killing:
            killing.execute(text("SELECT pg_terminate_backend(:session)"), {"session": session})
        assert not first.is_held()
    first.close()
