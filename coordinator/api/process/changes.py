"""Tells waiting requests that something was committed, by any process."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from coordinator.db.database import Database
from coordinator.db.repository import Repository
from covey.errors import TransientError

PATIENCE_SECONDS = 1.0
"""Seconds without a commit after which those who wait look all the same: an announcement may have been lost."""
Value = TypeVar("Value")


class Signal:
    """Example: `await signal.wait(5.0)` returns when another task calls `signal.send()`."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None
        self.count = 0
        """Number of times that it was sent."""

    async def wait(self, seconds: float | None = None, *, since: int | None = None) -> bool:
        """Return True after the next `send`, or False after `seconds` without one.

        `since` is the count of which the caller has seen the effect. If more were sent, this returns at once.
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
        """Wake all that wait."""
        self.count += 1
        if self._next is not None and not self._next.done():
            self._next.set_result(None)


class _Watch(NamedTuple, Generic[Value]):
    query: Callable[[Repository], Value]
    tell: Callable[[Value], None]
    is_needed: Callable[[], bool]


class Changes:
    """Watches the database for commits, until `run` is cancelled. Sends `signal` after each."""

    def __init__(self, database: Database, *, poll_s: float) -> None:
        """`poll_s` is the number of seconds between two looks at a counter of commits, which cost microseconds."""
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
        """After each commit, call `tell` with the result of a query, if `is_needed` then.

        All queries share one transaction.
        """
        self._watches.append(_Watch(query, tell, is_needed))

    async def run(self) -> None:
        """Watch the database. One whose commits nobody counts is taken to change each time, and any once a second."""
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
            return  # The next commit is another occasion.
        for watch, value in zip(needed, values, strict=True):
            watch.tell(value)


class FactSignal(Signal):
    """Sends itself after each commit that changes a fact."""

    def __init__(self, changes: Changes, fact: str) -> None:
        super().__init__()
        self._value: int | None = None
        changes.watch(lambda rows: rows.get_fact(fact), self._compare)

    def _compare(self, value: int) -> None:
        if value != self._value:
            self._value = value
            self.send()
