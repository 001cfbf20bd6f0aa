"""Threads for calls to one dependency, such as the chain's node or the object store.

A dependency that hangs fills its own lane, and nothing else waits for it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from covey.errors import TransientError

Result = TypeVar("Result")


class BoundedExecutor:
    """Example: `await BoundedExecutor("chain", threads=4, patience_s=10).run(lambda: client.get_block("latest"))`."""

    def __init__(self, name: str, *, threads: int, patience_s: float, waiting: int = 256) -> None:
        """`name` is that of the dependency in errors. At most `waiting` calls are under way or wait."""
        self._name, self._patience_s, self._most = name, patience_s, waiting
        self._threads = ThreadPoolExecutor(threads, name)
        self._count = 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of a blocking call.

        Raises TransientError("dependency_slow") if too many calls wait or if this one takes too long. It then goes on
        in its thread, and its result is dropped.
        """
        if self._count >= self._most:
            raise TransientError("dependency_slow", f"{self._count} calls wait for the {self._name} already")
        self._count += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        future.add_done_callback(self._leave)
        try:
            async with asyncio.timeout(self._patience_s):
                return await asyncio.shield(future)
        except TimeoutError:
            message = f"the {self._name} did not answer within {self._patience_s:g} s"
            raise TransientError("dependency_slow", message) from None

    def close(self) -> None:
        """Drop the calls that have not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _leave(self, future: "asyncio.Future[Result]") -> None:
        self._count -= 1
        if not future.cancelled():
            future.exception()  # Nobody may be left to look at it.
