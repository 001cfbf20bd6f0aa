"""A cached public page. Its cost does not grow with the number of viewers, who do not wait for a costly page."""

import asyncio
import time
from collections.abc import Callable

from coordinator.db.database import Database
from coordinator.db.repository import Repository

CHEAP_SECONDS = 0.02
"""Maximum cost of a cheap page, in CPU seconds. Viewers of a cheap page wait until it is up to date."""
REST = 4
"""Minimum pause before a cheap page is computed again, as a multiple of its cost. Viewers wait for it."""
BUSY = 5
"""The cost of a page is at least its wall time divided by this number. Wall time includes waits for a remote database
or a busy machine."""
SHARE = 20
"""Minimum age at which a costly page is computed again, as a multiple of its cost. Viewers get the old page at once."""
FRESH_SECONDS = 1.0
"""Maximum age in seconds of a cheap page while nothing is committed."""


class CachedPage:
    """A page that many viewers share. Example: `await CachedPage(database, build).read()`."""

    def __init__(self, database: Database, build: Callable[[Repository], bytes]) -> None:
        self._database, self._build = database, build
        self._page: bytes | None = None
        self._commits: int | None = None
        """Count of commits before the page was computed. None if commits could not be counted."""
        self._built_at = self._cost = 0.0
        self.spent_s = 0.0
        """CPU seconds of all computations of the page."""
        self._task: asyncio.Task[bytes] | None = None

    async def read(self) -> bytes:
        """Return the page. Raises TransientError if there is no page to return and the database does not answer."""
        if self._page is not None and not self._is_outdated():
            return self._page
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compute())
            self._task.add_done_callback(_look_at_error)
        if self._page is not None and self._cost > CHEAP_SECONDS:
            return self._page
        return await asyncio.shield(self._task)

    async def prepare(self) -> None:
        """Compute the page twice. The first time also prepares the statements, so the second one measures the cost.

        Raises the errors of `read`.
        """
        await self.read()
        self._commits, self._cost = None, 0.0
        await self.read()

    def _is_outdated(self) -> bool:
        age = time.monotonic() - self._built_at
        if self._cost > CHEAP_SECONDS:
            return age > SHARE * self._cost
        return age > FRESH_SECONDS or self._commits is None or self._commits != self._database.changes.read()

    async def _compute(self) -> bytes:
        if self._cost <= CHEAP_SECONDS:
            await asyncio.sleep(self._built_at + REST * self._cost - time.monotonic())
        commits, started = self._database.changes.read(), time.monotonic()
        page, cpu_s = await self._database.query(self._measure)
        self._page = page
        self.spent_s += cpu_s
        self._built_at = time.monotonic()
        self._commits, self._cost = commits, max(cpu_s, (self._built_at - started) / BUSY)
        return page

    def _measure(self, rows: Repository) -> tuple[bytes, float]:
        started = time.thread_time()
        page = self._build(rows)
        return page, time.thread_time() - started


def _look_at_error(task: "asyncio.Task[bytes]") -> None:
    """Retrieve the error of a finished task, so that asyncio does not report it if no viewer waited."""
    if not task.cancelled():
        task.exception()
