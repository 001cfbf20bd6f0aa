"""Wakes waiting requests after a commit of any process."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from coordinator.db.database import Database
from coordinator.db.repository import Repository
from covey.errors import TransientError

PATIENCE_SECONDS = 1.0
"""Maximum time in seconds between two wake-ups. An announcement of a commit may have been lost."""
Value = TypeVar("Value")


class Signal:
    """An event that occurs many times. Example: `await signal.wait(5.0)` returns when a task calls `signal.send()`."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None
        self.count = 0
        """Number of times that the signal was sent."""

    async def wait(self, seconds: float | None = None, *, since: int | None = None) -> bool:
        """Return True after the next `send`, or False after `seconds` without one.

        `since` is the last `count` that the caller has handled. If the signal was sent since, this returns at once.
        """
        if since is not None and since != self.count:
            return True
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._next)
        except TimeoutError:
            return False
        return True

    def send(self) -> None:
        """Wake all waiting tasks."""
        self.count += 1
        if self._next is not None and not self._next.done():
            self._next.set_result(None)


class _Watch(NamedTuple, Generic[Value]):
    query: Callable[[Repository], Value]
    tell: Callable[[Value], None]
    is_needed: Callable[[], bool]


class Changes:
    """Watches the database for commits while `run` runs, and sends `signal` after each."""

    def __init__(self, database: Database, *, poll_s: float) -> None:
        """Create a watcher. `poll_s` is the time in seconds between two reads of the counter of commits.

        Reading the counter takes microseconds.
        """
        self._database, self._poll_s = database, poll_s
        self._watches: list[_Watch[Any]] = []
        self.signal = Signal()

    def watch(
        self,
        query: Callable[[Repository], Value],
        tell: Callable[[Value], None],
        *,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> None:
        """Call `tell` with the result of a query after each commit, if `is_needed()` is true then.

        All queries share one transaction.
        """
        self._watches.append(_Watch(query, tell, is_needed))

    async def run(self) -> None:
        """Watch the database until this is canceled.

        If commits cannot be counted, the database counts as changed at every poll. It also counts as changed after
        PATIENCE_SECONDS without a commit.
        """
        seen, told_at = None, 0.0
        while True:
            newest, now = self._database.changes.read(), time.monotonic()
            if newest is None or newest != seen or now - told_at >= PATIENCE_SECONDS:
                seen, told_at = newest, now
                await self._tell()
                self.signal.send()
            await asyncio.sleep(self._poll_s)

    async def _tell(self) -> None:
        needed = [watch for watch in self._watches if watch.is_needed()]
        if not needed:
            return
        try:
            values = await self._database.query(lambda rows: [watch.query(rows) for watch in needed])
        except TransientError:
            return  # The query runs again after the next commit.
        for watch, value in zip(needed, values, strict=True):
            watch.tell(value)


class FactSignal(Signal):
    """A signal that is sent after each commit that changes a fact."""

    def __init__(self, changes: Changes, fact: str) -> None:
        super().__init__()
        self._value: int | None = None
        changes.watch(lambda rows: rows.get_fact(fact), self._compare)

    def _compare(self, value: int) -> None:
        if value != self._value:
            self._value = value
            self.send()
