"""Tells waiting requests that something was committed, by any process."""

import asyncio

from coordinator.db.database import Database


class Changes:
    """Example: `await changes.wait()` returns after the next commit. `run` watches until it is cancelled."""

    def __init__(self, database: Database, *, poll_s: float) -> None:
        """`poll_s` is the number of seconds between two looks at a counter of commits, which cost microseconds."""
        self._database, self._poll_s = database, poll_s
        self._next: asyncio.Future[None] | None = None

    async def wait(self, seconds: float | None = None) -> bool:
        """Return True after the next commit, or False after `seconds` without one."""
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._next)
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Watch the database until this is cancelled. A database that does not count is taken to change each time."""
        seen = None
        while True:
            newest = self._database.changes.read()
            if newest is None or newest != seen:
                seen = newest
                if self._next is not None and not self._next.done():
                    self._next.set_result(None)
            await asyncio.sleep(self._poll_s)
