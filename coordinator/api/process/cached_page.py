"""A public page whose costs do not grow with the number of its viewers, nor hold them up once it costs much."""

import asyncio
import time
from collections.abc import Callable

from coordinator.db.database import Database
from coordinator.db.repository import Repository

CHEAP_SECONDS = 0.02
"""Cost up to which a viewer waits for the page of this moment, in seconds of a core."""
REST = 4
"""A page that costs less is computed again after at least this many times what it cost, which viewers wait for."""
BUSY = 5
"""A page costs at least this part of the time that it took, which a database elsewhere or a busy machine prolongs."""
SHARE = 20
"""A page that costs more is computed again after this many times what it cost. Viewers get the last one until then."""
FRESH_SECONDS = 1.0
"""Maximum age in seconds of a page while nothing is committed."""


class CachedPage:
    """Example: `await CachedPage(database, build).read()`. However many viewers there are, it is computed once."""

    def __init__(self, database: Database, build: Callable[[Repository], bytes]) -> None:
        self._database, self._build = database, build
        self._page: bytes | None = None
        self._commits: int | None = None
        """Count of commits before the page was computed. None if the database does not count them."""
        self._built_at = self._cost = 0.0
        self._task: asyncio.Task[bytes] | None = None

    async def read(self) -> bytes:
        """Return the page. Raises TransientError if the database does not answer and there is no page yet."""
        if self._page is not None and not self._is_outdated():
            return self._page
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compute())
            self._task.add_done_callback(_look_at_error)
        if self._page is not None and self._cost > CHEAP_SECONDS:
            return self._page
        return await asyncio.shield(self._task)

    async def prepare(self) -> None:
        """Compute the page twice. The first time prepares the statements as well, and does not tell what a page costs.

        Raises as `read`.
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
        self._built_at = time.monotonic()
        self._commits, self._cost = commits, max(cpu_s, (self._built_at - started) / BUSY)
        return page

    def _measure(self, rows: Repository) -> tuple[bytes, float]:
        started = time.thread_time()
        page = self._build(rows)
        return page, time.thread_time() - started


def _look_at_error(task: "asyncio.Task[bytes]") -> None:
    """Nobody may have waited for it."""
    if not task.cancelled():
        task.exception()
