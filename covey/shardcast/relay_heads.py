"""Requests the heads of a relay's pools from its upstreams.

All upstreams are asked concurrently. Once one has answered, late ones are not awaited any more. A late answer counts
from the next request for the head.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

from prometheus_client.core import Metric

from covey.errors import CoveyError, ProtocolError, TransientError
from covey.protocol.head import Head
from covey.runtime.log import get_logger
from covey.runtime.prometheus import build_gauge
from covey.shardcast.flights import Flights, Misses
from covey.shardcast.piece_cache import select_mirrored
from covey.shardcast.pool_heads import RESTORED, FetchedHead, PoolHeads, merge_heads
from covey.shardcast.relay_fetch import RelayFetcher

_MAX_POOLS = 64
"""Maximum number of pools that a relay learns from its clients."""
_TOGETHER_SECONDS = 0.5
"""Seconds for which all upstreams are awaited. After a second, clients assume that a relay is silent."""
_LONGEST_SECONDS = 3.0
"""Maximum time in seconds to wait for a first head. A later head counts from the next request."""

_Answer = tuple[int, FetchedHead | CoveyError]
"""Number of an upstream, and its head or the error with which the request failed."""


class RelayHeads:
    """Heads of all pools that a relay follows. Methods must be called in the event loop."""

    def __init__(
        self,
        fetcher: RelayFetcher,
        *,
        pools: Sequence[int],
        fresh_s: float,
        on_change: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A head is served for `fresh_s` seconds without asking the upstreams. `on_change` receives the number of an
        upstream when one of its heads has changed.
        """
        self._fetcher, self._fresh_s, self._on_change, self._clock = fetcher, fresh_s, on_change, clock
        self.pools = {pool: PoolHeads(pool) for pool in pools}
        for pool in fetcher.cache.list_pools()[:_MAX_POOLS]:
            self._restore(pool)
        self._flights = Flights(most=512)
        self._misses = Misses()
        self._asked: dict[tuple[int, int], asyncio.Task[_Answer]] = {}
        """Requests in flight, by pool and number of the upstream."""
        self._threads = [ThreadPoolExecutor(2, "head") for _ in fetcher.upstreams]
        """Threads of each upstream, so that a silent upstream does not block the others."""
        self._failed: set[int] = set()
        """Pools whose last poll failed."""

    async def get(self, pool: int) -> bytes:
        """Return the union of the upstreams' current heads, or the last union if none of them answers."""
        heads = self.pools.get(pool)
        if heads is None or self._clock() - heads.checked_at > self._fresh_s:
            try:
                return await self._flights.run(pool, partial(self._refresh, pool))
            except CoveyError:
                if heads is None or heads.data is None:
                    raise
        if heads.data is None:
            raise ProtocolError("not_found", f"no upstream has a head of pool {pool}", status=404)
        return heads.data

    async def poll(self) -> None:
        """Request the heads of all pools. Never raises CoveyError."""
        pools = list(self.pools)
        polls = (self._flights.run(pool, partial(self._refresh, pool)) for pool in pools)
        for pool, result in zip(pools, await asyncio.gather(*polls, return_exceptions=True), strict=True):
            if isinstance(result, CoveyError) and pool not in self._failed:
                self._failed.add(pool)
                get_logger().warning("cannot update the head of a pool", pool=pool, reason=result.message)
            elif not isinstance(result, BaseException) and pool in self._failed:
                self._failed.discard(pool)
                get_logger().info("head of a pool is updated again", pool=pool)

    async def close(self) -> None:
        """End all requests."""
        await self._flights.close()
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for threads in self._threads:
            threads.shutdown(wait=False, cancel_futures=True)

    def list_mirrored(self) -> list[Head]:
        """Return the mirrored part of each head, for each pool and upstream. Any thread may call this."""
        return [head.mirrored for heads in list(self.pools.values()) for head in list(heads.heads.values())]

    def describe(self) -> Mapping[str, object]:
        """Return the values of /status for each pool."""
        now = self._clock()
        return {
            str(pool): {
                "newest_step": heads.newest_step,
                "head_age_s": None if heads.data is None else round(now - heads.checked_at, 1),
                "is_mirrored": heads.is_mirrored,
            }
            for pool, heads in self.pools.items()
        }

    def read_metrics(self) -> Iterable[Metric]:
        """Return the age and the newest step of the heads of the first _MAX_POOLS pools."""
        now, followed = self._clock(), list(islice(self.pools.items(), _MAX_POOLS))
        ages = {str(pool): now - heads.checked_at for pool, heads in followed if heads.data is not None}
        steps = {str(pool): step for pool, heads in followed if (step := heads.newest_step) is not None}
        text = "Seconds since an upstream has confirmed its head of a pool."
        yield build_gauge("covey_head_age_seconds", text, ages, label="pool")
        yield build_gauge("covey_newest_step", "Newest step that a head of a pool names.", steps, label="pool")

    def describe_upstream(self, number: int) -> Mapping[str, object]:
        """Return the values of /status for each pool of one upstream."""
        return {
            str(pool): {
                "newest_step": max((policy.step for policy in head.mirrored.policies), default=None),
                "is_mirrored": number in heads.mirrored,
            }
            for pool, heads in self.pools.items()
            if (head := heads.heads.get(number)) is not None
        }

    def _restore(self, pool: int) -> None:
        data, heads = self._fetcher.cache.find_head(pool), PoolHeads(pool)
        self.pools[pool] = heads
        if data is not None:
            mirrored = select_mirrored(Head.from_bytes(data), self._fetcher.keep)
            heads.put(RESTORED, FetchedHead(data, None, mirrored), self._clock())
            heads.data = data

    async def _refresh(self, pool: int) -> bytes:
        """Ask all upstreams for their heads of a pool, and return the union of all heads known."""
        heads = self.pools.get(pool)
        if heads is None:
            self._misses.require_promising(pool, is_listed=False, now=self._clock())
        fetched, failures = await self._ask_all(pool)
        if not fetched:
            failure = next((each for each in failures if isinstance(each, TransientError)), failures[0])
            if isinstance(failure, ProtocolError):
                if heads is None:
                    self._misses.add(pool, now=self._clock())
                else:
                    heads.checked_at = self._clock()
            raise failure
        if heads is None:
            heads = PoolHeads(pool)
            for number, head in fetched.items():
                self._put(heads, number, head)
            if len(self.pools) < _MAX_POOLS:
                self.pools[pool] = heads
        heads.checked_at = self._clock()
        heads.forget_old(len(self._threads), self._clock())
        if heads.is_changed or heads.data is None:
            heads.is_changed = False
            datas = [head.data for head in heads.heads.values()]
            is_followed = self.pools.get(pool) is heads
            heads.data = await asyncio.to_thread(self._merge, pool, datas, is_followed=is_followed)
        return heads.data

    async def _ask_all(self, pool: int) -> tuple[dict[int, FetchedHead], list[CoveyError]]:
        """Return the heads of the upstreams that answer in time, by number, and the errors of other upstreams.

        There is at least one error if there is no head.
        """
        late = {task for (asked_pool, _), task in self._asked.items() if asked_pool == pool}
        asked = {
            self._ask(pool, number)
            for number, upstream in enumerate(self._fetcher.upstreams)
            if not upstream.is_paused and (pool, number) not in self._asked
        }
        if not asked and not late:
            return {}, [TransientError("upstream_unreachable", "no upstream answers. Try again in a second")]
        done, waiting = set[asyncio.Task[_Answer]](), asked
        if asked:
            done, waiting = await asyncio.wait(asked, timeout=_TOGETHER_SECONDS)
        waiting, loop = waiting | late, asyncio.get_running_loop()
        deadline = loop.time() + _LONGEST_SECONDS
        while waiting and not any(isinstance(task.result()[1], FetchedHead) for task in done):
            left_s = max(0.0, deadline - loop.time())
            more, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not more:
                message = f"no upstream has sent its head of pool {pool} within {_LONGEST_SECONDS:g} s"
                return {}, [TransientError("upstream_unreachable", message)]
            done |= more
        answers = [task.result() for task in done]
        fetched = {number: answer for number, answer in answers if isinstance(answer, FetchedHead)}
        return fetched, [answer for _, answer in answers if isinstance(answer, CoveyError)]

    def _ask(self, pool: int, number: int) -> asyncio.Task[_Answer]:
        task = asyncio.create_task(self._update(pool, number))
        self._asked[pool, number] = task
        task.add_done_callback(lambda _: self._asked.pop((pool, number), None))
        return task

    async def _update(self, pool: int, number: int) -> _Answer:
        """Fetch the head of one upstream, and record it if the pool is followed."""
        heads, loop = self.pools.get(pool), asyncio.get_running_loop()
        known = None if heads is None else heads.heads.get(number)
        fetch = partial(self._fetcher.fetch_head, self._fetcher.upstreams[number], pool, known)
        try:
            head = await loop.run_in_executor(self._threads[number], fetch)
        except CoveyError as error:
            return number, error
        if (heads := self.pools.get(pool)) is not None:
            self._put(heads, number, head)
        return number, head

    def _put(self, heads: PoolHeads, number: int, head: FetchedHead) -> None:
        if heads.put(number, head, self._clock()):
            self._on_change(number)

    def _merge(self, pool: int, datas: Sequence[bytes], *, is_followed: bool) -> bytes:
        """Return the union of heads. It is stored only for a followed pool, because many pools would fill the disk."""
        data = merge_heads(pool, datas)
        if is_followed:
            self._fetcher.store_head(pool, data)
        return data
