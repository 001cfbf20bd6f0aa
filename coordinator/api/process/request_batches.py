"""Applies a function to the items of many requests at once.

Items that arrive while one batch is being applied form the next batch, so batches grow with the load.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from covey.errors import CoveyError, TransientError

MOST = 256
"""Maximum number of items in a batch."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class RequestBatches(Generic[Item, Result]):
    """Batches of one kind of request. Example: `await RequestBatches(collect_all).add(ask)`."""

    def __init__(self, apply: Callable[[Sequence[Item]], Awaitable[Sequence[Result | CoveyError]]]) -> None:
        """Create batches. `apply` returns the result or error of each item. Its own CoveyError is raised for each."""
        self._apply = apply
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Result:
        """Return the result of an item, or raise its error."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        result: Result = await future
        return result

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._apply_one(batch)
        finally:
            # After a defect, another task runs the items that have arrived since.
            self._running = asyncio.create_task(self._run()) if self._waiting else None

    async def _apply_one(self, batch: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        results: Sequence[Result | CoveyError] = ()
        try:
            results = await self._apply([item for item, _ in batch])
        except CoveyError as error:
            results = [error] * len(batch)
        finally:  # No request may wait forever after a defect.
            settle([future for _, future in batch], results)


def settle(futures: Sequence[asyncio.Future[Result]], results: Sequence[Result | CoveyError]) -> None:
    """Give each request its result or its error.

    After a defect, requests without a result get TransientError("not_applied").
    """
    missing = TransientError("not_applied", "the batch of the request failed")
    for index, future in enumerate(futures):
        result = results[index] if index < len(results) else missing
        if future.done():
            continue  # The client has disconnected.
        if isinstance(result, CoveyError):
            future.set_exception(result)
        else:
            future.set_result(result)
