import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.api.process import changes as changes_module
from coordinator.api.process import long_poll
from coordinator.api.process.changes import Changes, Signal
from coordinator.api.process.long_poll import call_when_gone, wait_for
from coordinator.db.change_counter import SqliteCommits
from coordinator.db.database import Database

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


@pytest.fixture(autouse=True)
def _only_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only signals of commits cause looks, and no time that passes without one."""
    monkeypatch.setattr(changes_module, "PATIENCE_SECONDS", 10.0 * HANG_S)
    monkeypatch.setattr(long_poll, "LOOK_SECONDS", 10.0 * HANG_S)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'rows.sqlite3'}")
    database.prepare()
    yield database
    database.close()


@pytest.fixture
async def changes(database: Database) -> AsyncIterator[Changes]:
    changes = Changes(database, poll_s=0.01)
    running = asyncio.create_task(changes.run())
    assert await changes.signal.wait(HANG_S), "the first reading counts as a change"
    yield changes
    running.cancel()


async def look_in_vain(looks: list[None]) -> None:
    looks.append(None)


async def test_wait_for__nothing_is_committed__looks_first_and_last(changes: Changes):
    looks: list[None] = []
    assert await wait_for(changes.signal, 0.3, lambda: look_in_vain(looks)) is None
    assert len(looks) == 2


async def test_wait_for__a_commit_of_another_process__is_looked_at(changes: Changes, database: Database):
    other, looks = Database(database.url), list[int]()

    async def look() -> int | None:
        looks.append(await database.query(lambda rows: rows.get_fact("ended")))
        return looks[-1] or None

    waiting = asyncio.create_task(wait_for(changes.signal, 10 * HANG_S, look))
    async with asyncio.timeout(HANG_S):
        while not looks:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert not waiting.done()
        with other.write() as rows:
            rows.set_fact("ended", 1)
        other.close()
        assert await waiting == 1
    assert looks == [0, 1]


async def test_wait_for__what_depends_on_the_time__is_looked_at_without_a_commit(
    changes: Changes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(long_poll, "LOOK_SECONDS", 0.05)
    clock = asyncio.get_running_loop().time
    ready_at = clock() + 0.1

    async def look() -> bool | None:
        return clock() >= ready_at or None

    assert await wait_for(changes.signal, HANG_S, look) is True


async def test_wait_for__a_database_that_does_not_count__is_looked_at_every_time():
    changes = Changes(SimpleNamespace(changes=SqliteCommits("no folder/rows.sqlite3")), poll_s=0.01)  # type: ignore[arg-type]
    running = asyncio.create_task(changes.run())
    looks: list[None] = []

    async def look() -> bool | None:
        looks.append(None)
        return len(looks) > 3 or None

    async with asyncio.timeout(HANG_S):
        assert await wait_for(changes.signal, 10 * HANG_S, look) is True
    running.cancel()


async def test_wait_for__the_poll_is_closed__ends_with_the_next_look(changes: Changes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(long_poll, "LOOK_SECONDS", 0.01)
    is_open, looks = True, list[None]()
    waiting = asyncio.create_task(
        wait_for(changes.signal, 10 * HANG_S, lambda: look_in_vain(looks), is_open=lambda: is_open)
    )
    async with asyncio.timeout(HANG_S):
        while not looks:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        is_open = False
        assert await waiting is None


async def test_call_when_gone__client_leaves__is_called_once_and_not_after_the_block():
    messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    calls: list[str] = []
    with call_when_gone(messages.get, lambda: calls.append("gone")):
        await asyncio.sleep(0.01)
        assert calls == []
        messages.put_nowait({"type": "http.disconnect"})
        await asyncio.sleep(0.01)
    with call_when_gone(messages.get, lambda: calls.append("late")):
        pass
    messages.put_nowait({"type": "http.disconnect"})
    await asyncio.sleep(0.01)
    assert calls == ["gone"]


async def test_wait_for__signal_comes_during_a_look__is_looked_at_at_once():
    """Before, it was lost, and the answer came with the next look a second later."""
    signal, looks = Signal(), list[int]()

    async def look() -> bool | None:
        looks.append(signal.count)
        if len(looks) == 1:
            signal.send()
        return len(looks) > 1 or None

    async with asyncio.timeout(HANG_S):
        assert await wait_for(signal, 10 * HANG_S, look) is True
    assert looks == [0, 1]
