"""Whether anything was committed."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from coordinator.db.change_counter import CHANNEL, SqliteCommits
from coordinator.db.database import Database
from tests.fakes.databases import open_postgres, open_sqlite

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    opened = open_sqlite(tmp_path / "rows.sqlite3") if request.param == "sqlite" else open_postgres()
    with opened as database:
        wait_until(lambda: database.changes.read() is not None)
        yield database


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    """The database as another process has it."""
    other = Database(database.url)
    yield other
    other.close()


def wait_until(is_met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_met():
        assert time.monotonic() < deadline, "this was not met in time"
        time.sleep(0.005)


def commit(database: Database, block: int = 1) -> None:
    with database.write() as rows:
        rows.set_fact("ended", block)


def test_read__after_a_commit_of_any_connection__is_another_number(database: Database, other: Database):
    seen = database.changes.read()
    for block, each in enumerate((database, other), 1):
        commit(each, block)
        wait_until(lambda before=seen: database.changes.read() not in (before, None))
        seen = database.changes.read()


def test_read__nothing_committed__is_the_same_number(database: Database, other: Database):
    before = database.changes.read()
    with pytest.raises(ZeroDivisionError), other.write() as rows:
        rows.set_fact("ended", 1 // 0)
    with other.read() as rows:
        assert rows.get_fact("ended") == 0
    with other.write() as rows:
        rows.set_fact("ended", 1)
        rows.session.flush()
        time.sleep(0.05)
        assert database.changes.read() == before, "it is not committed yet"
    wait_until(lambda: database.changes.read() != before)


def test_read__file_that_is_none__is_none(tmp_path: Path):
    assert SqliteCommits(str(tmp_path / "no folder" / "rows.sqlite3")).read() is None


def test_read__server_has_ended_the_connection__counts_again():
    with open_postgres() as database:
        wait_until(lambda: database.changes.read() is not None)
        with database.read() as rows:
            listening = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN ' || {CHANNEL}"
            assert rows.session.execute(text(listening)).all() == [(True,)]
        wait_until(lambda: database.changes.read() is None)
        wait_until(lambda: database.changes.read() is not None)
        before = database.changes.read()
        commit(database)
        wait_until(lambda: database.changes.read() not in (before, None))


def test_read__another_schema_of_the_same_server__is_not_counted():
    with open_postgres() as one, open_postgres() as another:
        wait_until(lambda: one.changes.read() is not None)
        before = one.changes.read()
        commit(another)
        time.sleep(0.1)
        assert one.changes.read() == before
