"""A relay: fetches ahead what the newest policies need, and anything else when a client asks for it.

Nobody trusts a relay, and a relay does not trust its upstream: whatever it keeps or serves has the hash in its name.
Heads have none. They are served as the upstream sends them, and a wrong one is replaced with the next poll.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from covey.errors import CoveyError, ProtocolError
from covey.protocol.head import Head
from covey.protocol.ids import Hash
from covey.runtime.log import get_logger
from covey.shardcast.flights import Flights, Misses
from covey.shardcast.piece_cache import KEPT_DATASETS, SPARE_BYTES, PieceCache, list_mirrored
from covey.shardcast.piece_files import Location
from covey.shardcast.reachability import KEPT_POLICIES
from covey.shardcast.relay_fetch import FetchedHead, RelayFetcher
from covey.shardcast.upstream import Upstream

_MOST_POOLS = 64
"""Maximum number of pools that a relay learns from its clients."""
_PRUNE_S = 60.0
"""Seconds after which a relay prunes even if no head has changed, and fetches ahead again after the disk was full."""
_MAKE_ROOM_S = 5.0
"""Minimum time in seconds between two attempts to make room on a full disk."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay fetches and what it keeps. Example: RelaySettings(keep=3, pools=(1,))."""

    keep: int = KEPT_POLICIES
    """Number of the newest policies of each pool that are fetched ahead and kept."""
    keep_datasets: int = KEPT_DATASETS
    """Number of data sets that are kept: those that were fetched last."""
    spare_bytes: int = SPARE_BYTES
    """Size in bytes of other pieces that are kept."""
    pools: tuple[int, ...] = ()
    """Pools that are followed from the start. Others are followed once a client requests their head."""
    poll_s: float = 1.0
    """Seconds between two requests for the head of a pool."""
    fresh_s: float = 0.2
    """Seconds for which a head is served without asking the upstream."""
    fetches: int = 8
    """Maximum number of pieces, manifests and records that are fetched at once."""
    ahead: int = 4
    """Maximum number of pieces that are fetched ahead at once."""


@dataclass(slots=True)
class _PoolState:
    head: FetchedHead | None = None
    checked_at: float = float("-inf")
    """Time at which the upstream last confirmed the head."""
    is_mirrored: bool = False
    """Whether everything that is fetched ahead is here."""


class Relay:
    """Implements `PieceSource`. Call `start` before the first request and `close` at the end."""

    def __init__(
        self,
        cache: PieceCache,
        upstreams: Sequence[Upstream],
        settings: RelaySettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._settings, self._clock = cache, settings or RelaySettings(), clock
        self._fetcher = RelayFetcher(cache, upstreams, make_room=self._make_room)
        self._pools = {pool: _PoolState() for pool in self._settings.pools}
        for pool in cache.list_pools():
            data = cache.find_head(pool)
            self._pools[pool] = _PoolState(None if data is None else FetchedHead(data, None, ""))
        self._flights = Flights(most=512)
        self._misses = Misses()
        self._threads = ThreadPoolExecutor(self._settings.fetches, "fetch")
        self._head_threads = ThreadPoolExecutor(4, "head")
        self._has_news = asyncio.Event()
        self._made_room_at = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to follow the known pools. Must be called in the event loop."""
        loops = (self._poll_forever, self._abort_forever, self._mirror_forever)
        self._tasks = [asyncio.create_task(loop()) for loop in loops]

    async def close(self) -> None:
        """End all requests and tasks."""
        for upstream in self._fetcher.upstreams:
            upstream.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._flights.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._head_threads.shutdown(wait=False, cancel_futures=True)

    async def get_piece(self, digest: Hash, *, verify: bool) -> Location | memoryview:
        """Return a piece, fetched if need be. It is in memory if the disk is full."""
        if not verify and (location := self._cache.find_checked_piece(digest)) is not None:
            return location
        return await self._flights.run(("piece", digest), partial(self._obtain_piece, digest, verify=verify))

    async def get_manifest(self, address: Hash, *, verify: bool) -> bytes:
        """Return the bytes of a manifest, fetched if need be."""
        find = partial(self._cache.find_manifest, address, verify=verify)
        fetch = partial(self._fetcher.fetch_manifest, address)
        return await self._flights.run(("manifest", address), partial(self._obtain, address, find, fetch))

    async def get_record(self, record: Hash, *, verify: bool) -> bytes:
        """Return the bytes of a policy record, fetched if need be."""
        find = partial(self._cache.find_record, record, verify=verify)
        fetch = partial(self._fetcher.fetch_record, record)
        return await self._flights.run(("record", record), partial(self._obtain, record, find, fetch))

    async def get_head(self, pool: int) -> bytes:
        """Return the head as the upstream has it now, or the last one if the upstream does not answer."""
        state = self._pools.get(pool)
        if state is None or self._clock() - state.checked_at > self._settings.fresh_s:
            try:
                return await self._flights.run(("head", pool), partial(self._refresh, pool))
            except CoveyError:
                if state is None or state.head is None:
                    raise
        if state.head is None:
            raise ProtocolError("not_found", f"no upstream has a head of pool {pool}", status=404)
        return state.head.data

    def describe(self) -> Mapping[str, object]:
        """Return the values of /status. Everybody can read them, so they do not name the upstreams."""
        upstreams = [
            {"number": number, "failures": each.failures, "bytes_per_s": round(each.rate)}
            for number, each in enumerate(self._fetcher.upstreams, 1)
        ]
        pools = {}
        for pool, state in self._pools.items():
            policies = () if state.head is None else Head.from_bytes(state.head.data).policies
            newest = max((policy.step for policy in policies), default=None)
            age_s = round(self._clock() - state.checked_at, 1) if state.head is not None else None
            pools[str(pool)] = {"newest_step": newest, "head_age_s": age_s, "is_mirrored": state.is_mirrored}
        disk = {**self._cache.describe(), "is_full": self._fetcher.is_full}
        return {"role": "relay", "upstreams": upstreams, "pools": pools, **disk}

    async def _obtain_piece(self, digest: Hash, *, verify: bool) -> Location | memoryview:
        if self._cache.has_piece(digest):
            found = await asyncio.to_thread(self._cache.find_piece, digest, verify=verify)
            if found is not None:
                return found
        is_listed = self._cache.is_listed(digest)
        return await self._fetch(digest, partial(self._fetcher.fetch_piece, digest), is_listed=is_listed)

    async def _obtain(self, address: Hash, find: Callable[[], bytes | None], fetch: Callable[[], bytes]) -> bytes:
        found = await asyncio.to_thread(find)
        return found if found is not None else await self._fetch(address, fetch, is_listed=False)

    async def _fetch(self, key: Hash, fetch: Callable[[], Result], *, is_listed: bool) -> Result:
        self._misses.require_promising(key, is_listed=is_listed, now=self._clock())
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, fetch)
        except ProtocolError:
            self._misses.add(key, now=self._clock())
            raise

    async def _refresh(self, pool: int) -> bytes:
        """Ask the upstream for a head, and announce it if it has changed."""
        state, key = self._pools.get(pool), ("head", pool)
        if state is None:
            self._misses.require_promising(key, is_listed=False, now=self._clock())
        loop, known = asyncio.get_running_loop(), None if state is None else state.head
        try:
            fetched = await loop.run_in_executor(self._head_threads, self._fetcher.fetch_head, pool, known)
        except ProtocolError:
            if state is None:
                self._misses.add(key, now=self._clock())
            else:
                state.checked_at = self._clock()
            raise
        if state is None:
            state = _PoolState()
            if len(self._pools) < _MOST_POOLS:
                self._pools[pool] = state
        if known is None or known.data != fetched.data:
            state.is_mirrored = False
            self._has_news.set()
        state.head, state.checked_at = fetched, self._clock()
        return fetched.data

    async def _poll_forever(self) -> None:
        failed: set[int] = set()
        while True:
            pools = list(self._pools)
            shared = (self._flights.run(("head", pool), partial(self._refresh, pool)) for pool in pools)
            for pool, result in zip(pools, await asyncio.gather(*shared, return_exceptions=True), strict=True):
                if isinstance(result, CoveyError) and pool not in failed:
                    failed.add(pool)
                    get_logger().warning("head is not updated", pool=pool, reason=result.message)
                elif not isinstance(result, BaseException) and pool in failed:
                    failed.discard(pool)
                    get_logger().info("head is updated again", pool=pool)
            await asyncio.sleep(self._settings.poll_s)

    async def _abort_forever(self) -> None:
        while True:
            for upstream in self._fetcher.upstreams:
                upstream.abort_overdue()
            await asyncio.sleep(1)

    async def _mirror_forever(self) -> None:
        """Fetch ahead after each change of a head, and again after a while if something was not available."""
        is_complete = True
        while True:
            try:
                should_wait = is_complete or self._fetcher.is_full
                async with asyncio.timeout(_PRUNE_S if should_wait else 2 * self._settings.poll_s):
                    await self._has_news.wait()
            except TimeoutError:
                pass
            self._has_news.clear()
            is_complete = await self._mirror()

    async def _mirror(self) -> bool:
        """Fetch what the newest policies need, the newest first, and prune. Returns whether everything is here.

        Ends early if a head changes meanwhile.
        """
        self._fetcher.is_full = False
        states = [(state, state.head) for state in self._pools.values() if state.head is not None]
        heads = [Head.from_bytes(head.data) for _, head in states]
        policies = list_mirrored(heads, self._settings.keep)
        ways = [way for policy in policies for way in policy.ways]
        is_complete = await self._run_all(policies, lambda policy: self.get_record(policy.record, verify=False))
        is_complete &= await self._run_all(ways, lambda way: self.get_manifest(way.manifest, verify=False))
        if is_complete:  # Otherwise the pieces of a missing manifest would be removed.
            await asyncio.to_thread(self._prune)
            self._fetcher.is_full = False
        pieces: dict[Hash, int] = {}
        for way in ways:
            listed = await asyncio.to_thread(self._cache.list_pieces, way.manifest)
            pieces |= listed or {}
        missing = [digest for digest in pieces if not self._cache.has_piece(digest)]
        is_complete &= await self._run_all(missing, lambda digest: self.get_piece(digest, verify=False))
        is_complete &= all(map(self._cache.has_piece, missing))  # One without room is fetched, but not kept.
        for state, head in states:
            state.is_mirrored = is_complete and state.head is not None and state.head.data == head.data
        return is_complete or self._has_news.is_set()

    async def _run_all(self, items: Iterable[Item], work: Callable[[Item], Awaitable[object]]) -> bool:
        """Do the work for all items, several at once. Returns whether all succeeded. Ends early if a head changes."""
        queue, is_complete = iter(items), True

        async def run() -> None:
            nonlocal is_complete
            for item in queue:
                if self._has_news.is_set() or self._fetcher.is_full:
                    is_complete = False
                    return
                try:
                    await work(item)
                except (CoveyError, OSError) as error:  # Neither ends the mirror: it tries again later.
                    is_complete = False
                    get_logger().debug("cannot fetch ahead", reason=str(error))

        await asyncio.gather(*(run() for _ in range(self._settings.ahead)))
        return is_complete and not self._fetcher.is_full

    def _prune(self, spare_share: float = 1.0) -> None:
        settings = self._settings
        try:
            self._cache.prune(
                keep=settings.keep,
                keep_datasets=settings.keep_datasets,
                spare_bytes=settings.spare_bytes,
                spare_share=spare_share,
            )
        except OSError as error:
            get_logger().warning("cannot prune", reason=str(error), root=str(self._cache.root))

    def _make_room(self) -> None:
        """Remove the older half of the spare pieces."""
        if self._clock() - self._made_room_at >= _MAKE_ROOM_S:
            self._made_room_at = self._clock()
            self._prune(spare_share=0.5)
