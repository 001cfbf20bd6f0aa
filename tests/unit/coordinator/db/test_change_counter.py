"""Whether anything was committed, and that a waiting request looks at its rows no more often than that."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.api import long_poll
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


@pytest.fixture
def ctx(database: Database) -> Any:
    config = SimpleNamespace(poll_seconds=0.01)
    return SimpleNamespace(database=database, config=config, stop=asyncio.Event())


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


async def test_wait_for__nothing_is_committed__looks_first_and_last(ctx: Any):
    looks: list[None] = []
    assert await long_poll.wait_for(ctx, 0.3, lambda: looks.append(None)) is None
    assert len(looks) == 2


async def test_wait_for__a_commit_of_another_process__is_looked_at(ctx: Any, other: Database):
    def look() -> int | None:
        with ctx.database.read() as rows:
            return rows.get_fact("ended") or None

    waiting = asyncio.create_task(long_poll.wait_for(ctx, 30, look))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    commit(other)
    assert await asyncio.wait_for(waiting, long_poll.LOOK_SECONDS / 2) == 1


async def test_wait_for__what_depends_on_the_time__is_looked_at_without_a_commit(
    ctx: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(long_poll, "LOOK_SECONDS", 0.05)
    ready_at = asyncio.get_running_loop().time() + 0.1
    clock = asyncio.get_running_loop().time
    assert await long_poll.wait_for(ctx, 30, lambda: clock() >= ready_at or None) is True


async def test_wait_for__a_database_that_does_not_count__is_looked_at_every_time(ctx: Any):
    ctx.database = SimpleNamespace(changes=ChangeCounter(None))
    looks: list[None] = []
    assert await long_poll.wait_for(ctx, 0.3, lambda: looks.append(None)) is None
    assert len(looks) > 3


async def test_wait_for__the_process_is_to_end__answers_at_once(ctx: Any):
    waiting = asyncio.create_task(long_poll.wait_for(ctx, 30, lambda: None))
    await asyncio.sleep(0.05)
    ctx.stop.set()
    assert await asyncio.wait_for(waiting, 2) is None
