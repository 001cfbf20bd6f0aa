"""Limits the requests that clients of a relay cause at its upstreams.

`Flights` merges concurrent requests for the same item. `Misses` remembers which items the upstreams do not have, and
limits the rate of requests for such items.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, cast

from covey.errors import ProtocolError, TransientError
from covey.runtime.rate_limit import TokenBuckets

Value = TypeVar("Value")


class Flights:
    """Merges concurrent calls with the same key, which share the first result. Example: `await flights.run(key,
    fetch)`.
    """

    def __init__(self, most: int) -> None:
        """`most` is the maximum number of different keys in flight."""
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}
        self._most = most

    async def run(self, key: Hashable, work: Callable[[], Awaitable[Value]]) -> Value:
        """Return the result of `work`, or that of a running call with the same key.

        Raises TransientError("busy") if too many different keys are in flight.
        """
        task = self._tasks.get(key)
        if task is None:
            if len(self._tasks) >= self._most:
                raise TransientError("busy", f"the relay is already fetching {self._most} items. Try again later")
            task = asyncio.ensure_future(_await(work))
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._end(key, done))
        return cast(Value, await asyncio.shield(task))

    async def close(self) -> None:
        """Cancel all work and wait for it to end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # asyncio logs an exception that nobody has retrieved.


async def _await(work: Callable[[], Awaitable[Value]]) -> Value:
    return await work()


class Misses:
    """Items that the upstreams recently did not have. Times are in seconds of any monotonic clock."""

    def __init__(self, *, memory_s: float = 3.0, rate: float = 10.0, burst: float = 50.0, entries: int = 4096) -> None:
        """A missing item is not requested again for `memory_s` seconds. Requests for unlisted items that turn out to be
        missing are limited to `burst` at once and `rate` per second.
        """
        self._memory_s, self._entries = memory_s, entries
        self._times: OrderedDict[Hashable, float] = OrderedDict()
        self._budget = TokenBuckets(rate=rate, burst=burst, clients=1)

    def require_promising(self, key: Hashable, *, is_listed: bool, now: float) -> None:
        """Raise ProtocolError("not_found") if the upstreams did not have the item a moment ago.

        Raises TransientError("busy") if the upstreams have recently been asked for too many missing items, unless
        `is_listed` says that a manifest or head lists this item.
        """
        missed_at = self._times.get(key)
        if missed_at is not None and now - missed_at < self._memory_s:
            raise ProtocolError("not_found", "no upstream has the item", status=404)
        if not is_listed and self._budget.take("", 0.0, now=now):
            raise TransientError("busy", "the upstreams were asked for too many unknown items. Try again later")

    def add(self, key: Hashable, *, now: float, is_listed: bool = False) -> None:
        """Remember that the upstreams do not have the item. A listed item does not count against the rate.

        Otherwise a false head that lists many missing items could block the requests for existing ones.
        """
        if not is_listed:
            self._budget.take("", now=now)
        self._times[key] = now
        self._times.move_to_end(key)
        if len(self._times) > self._entries:
            self._times.popitem(last=False)
