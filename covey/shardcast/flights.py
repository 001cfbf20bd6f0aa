"""Protects an upstream from the clients of a relay: equal requests share one, and failed ones are not repeated at once.

`Flights` merges concurrent requests for the same thing. `Misses` remembers what the upstream does not have, and limits
how often it is asked for things that it turns out not to have.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, cast

from covey.errors import ProtocolError, TransientError
from covey.runtime.rate_limit import TokenBuckets

Value = TypeVar("Value")


class Flights:
    """Concurrent calls with the same key share the result of the first. Example: `await flights.run(key, fetch)`."""

    def __init__(self, most: int) -> None:
        """`most` is the maximum number of different keys at once."""
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}
        self._most = most

    async def run(self, key: Hashable, work: Callable[[], Awaitable[Value]]) -> Value:
        """Return the result of `work`, or that of a call with the same key that has not ended yet.

        Raises TransientError("busy") if there are too many different keys.
        """
        task = self._tasks.get(key)
        if task is None:
            if len(self._tasks) >= self._most:
                raise TransientError("busy", f"the relay is already fetching {self._most} things. Try again later")
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
            task.exception()  # All callers may have gone, and asyncio would complain.


async def _await(work: Callable[[], Awaitable[Value]]) -> Value:
    return await work()


class Misses:
    """What the upstream recently did not have. Times are in seconds of any clock that does not go back."""

    def __init__(self, *, memory_s: float = 3.0, rate: float = 10.0, burst: float = 50.0, entries: int = 4096) -> None:
        """A thing is not requested again for `memory_s` seconds. At most `burst` things that nobody has, and then
        `rate` per second, are requested.
        """
        self._memory_s, self._entries = memory_s, entries
        self._times: OrderedDict[Hashable, float] = OrderedDict()
        self._budget = TokenBuckets(rate=rate, burst=burst, clients=1)

    def require_promising(self, key: Hashable, *, is_listed: bool, now: float) -> None:
        """Raise ProtocolError("not_found") if the upstream did not have the thing a moment ago.

        Raises TransientError("busy") if the upstream has recently been asked for too many things that it did not have,
        unless `is_listed` says that a manifest or head lists this one.
        """
        missed_at = self._times.get(key)
        if missed_at is not None and now - missed_at < self._memory_s:
            raise ProtocolError("not_found", "the upstream does not have it", status=404)
        if not is_listed and self._budget.take("", 0.0, now=now):
            raise TransientError("busy", "the upstream was asked for too many unknown things. Try again later")

    def add(self, key: Hashable, *, now: float, is_listed: bool = False) -> None:
        """Remember that the upstream does not have the thing. One that is listed does not count as unknown.

        Otherwise a false head that lists many things could end the requests for true ones.
        """
        if not is_listed:
            self._budget.take("", now=now)
        self._times[key] = now
        self._times.move_to_end(key)
        if len(self._times) > self._entries:
            self._times.popitem(last=False)
