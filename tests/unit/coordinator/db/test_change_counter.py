"""Whether anything was committed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.db.change_counter import ChangeCounter
from coordinator.db.database import Database

pytestmark = pytest.mark.unit


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'rows.sqlite3'}")
    database.migrate()
    yield database
    database.close()


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    """The database as another process has it."""
    other = Database(database.url)
    yield other
    other.close()


def commit(database: Database, block: int = 1) -> None:
    with database.write() as rows:
        rows.set_fact("ended", block)


def test_read__after_a_commit_of_any_connection__is_another_number(database: Database, other: Database):
    numbers = [database.changes.read()]
    for block, each in enumerate((database, other), 1):
        commit(each, block)
        numbers.append(database.changes.read())
    assert None not in numbers
    assert len(set(numbers)) == 3


def test_read__nothing_committed__is_the_same_number(database: Database, other: Database):
    before = database.changes.read()
    with pytest.raises(ZeroDivisionError), other.write() as rows:
        rows.set_fact("ended", 1 // 0)
    with other.read() as rows:
        assert rows.get_fact("ended") == 0
    with other.write() as rows:
        rows.set_fact("ended", 1)
        rows.session.flush()
        assert database.changes.read() == before, "it is not committed yet"
    assert database.changes.read() != before


def test_read__nobody_counts__is_none(tmp_path: Path):
    assert ChangeCounter(None).read() is None
    assert ChangeCounter(str(tmp_path / "no folder" / "rows.sqlite3")).read() is None
