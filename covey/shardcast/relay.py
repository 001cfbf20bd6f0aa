"""A relay: mirrors what the newest policies need, and fetches anything else when a client requests it.

To mirror means to fetch a resource before a client requests it. Nobody trusts a relay, and a relay does not trust its
upstreams. Whatever it keeps or serves is verified by the hash in its name. Heads have no hash, so the relay serves the
union of the heads of all upstreams (`pool_heads`). It mirrors each upstream independently, so an upstream that lies or
stalls does not delay what another one names.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from prometheus_client.core import Metric

from covey.errors import CoveyError, ProtocolError
from covey.protocol.ids import Hash
from covey.protocol.pieces import Piece
from covey.runtime.log import get_logger
from covey.runtime.prometheus import build_counter, build_gauge
from covey.shardcast.flights import Flights, Misses
from covey.shardcast.piece_cache import KEPT_DATASETS, SPARE_BYTES, PieceCache, list_mirrored
from covey.shardcast.piece_files import Location
from covey.shardcast.reachability import KEPT_POLICIES
from covey.shardcast.relay_fetch import RelayFetcher
from covey.shardcast.relay_heads import RelayHeads
from covey.shardcast.relay_previews import RelayPreviews
from covey.shardcast.upstream import Upstream

_PRUNE_SECONDS = 60.0
"""Interval in seconds at which a relay prunes if no head changes. It also mirrors again then if the disk was full."""
_MAKE_ROOM_SECONDS = 5.0
"""Minimum time in seconds between two attempts to make room on a full disk."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay fetches and what it keeps. Example: RelaySettings(keep=3, pools=(1,))."""

    keep: int = KEPT_POLICIES
    """Number of newest policies that are mirrored and kept for each pool and upstream. Honest upstreams name the same
    policies.
    """
    keep_datasets: int = KEPT_DATASETS
    """Number of data sets that are kept. The most recently fetched ones stay."""
    spare_bytes: int = SPARE_BYTES
    """Maximum total size in bytes of spare pieces, which no kept manifest lists. The newest ones stay."""
    pools: tuple[int, ...] = ()
    """Pools that are followed from the start. Any other pool is followed once a client requests its head."""
    poll_s: float = 1.0
    """Seconds between two requests for the head of a pool."""
    fresh_s: float = 0.2
    """Age in seconds up to which a head is served without asking the upstreams."""
    fetches: int = 8
    """Maximum number of concurrent requests for pieces, manifests and records."""
    ahead: int = 4
    """Maximum number of concurrent requests that mirror one upstream."""


class _NoRoomError(Exception):
    """A piece was fetched but could not be stored. It ends the mirroring, because other pieces could not be stored
    either.
    """


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
        keep, ahead = self._settings.keep, self._settings.ahead * len(upstreams)
        self._fetcher = RelayFetcher(cache, upstreams, keep=keep, make_room=self._make_room)
        self._news = [asyncio.Event() for _ in upstreams]
        """One event for each upstream, which is set when one of its heads changes."""
        self._heads = RelayHeads(
            self._fetcher,
            pools=self._settings.pools,
            fresh_s=self._settings.fresh_s,
            on_change=lambda number: self._news[number].set(),
            clock=clock,
        )
        self._previews = RelayPreviews(self._fetcher, fresh_s=self._settings.fresh_s, clock=clock)
        self._flights = Flights(most=512)
        self._misses = Misses()
        self._threads = ThreadPoolExecutor(self._settings.fetches + ahead, "fetch")
        self._made_room_at = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to follow the known pools. Must be called in the event loop."""
        mirrors = (self._mirror_forever(number) for number in range(len(self._news)))
        loops = (self._poll_forever(), self._preview_forever(), self._abort_forever(), *mirrors)
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def close(self) -> None:
        """End all requests and tasks."""
        for upstream in self._fetcher.upstreams:
            upstream.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._heads.close()
        await self._previews.close()
        await self._flights.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def get_piece(self, digest: Hash, *, verify: bool) -> Location | memoryview:
        """Return a piece. Fetches it if it is missing, and returns it in memory if the disk is full."""
        if not verify and (location := self._cache.find_checked_piece(digest)) is not None:
            return location
        return await self._flights.run(("piece", digest), partial(self._obtain_piece, digest, verify=verify))

    async def get_manifest(self, address: Hash, *, verify: bool) -> bytes:
        """Return the bytes of a manifest. Fetches it if it is missing."""
        return await self._get_manifest(address, verify=verify, is_listed=False)

    async def get_record(self, record: Hash, *, verify: bool) -> bytes:
        """Return the bytes of a policy record. Fetches it if it is missing."""
        return await self._get_record(record, verify=verify, is_listed=False)

    async def get_head(self, pool: int) -> bytes:
        """Return the union of the upstreams' current heads, or the last union if none of them answers."""
        return await self._heads.get(pool)

    async def get_preview(self, pool: int) -> bytes:
        """Return the preview of a pool's export, from the first upstream that has one."""
        return await self._previews.get(pool)

    def describe(self) -> Mapping[str, object]:
        """Return the values of /status. They are public, so they do not name the upstreams."""
        upstreams = [
            {
                "number": number,
                "failures": each.failures,
                "bytes_per_s": round(each.rate),
                "pools": self._heads.describe_upstream(number - 1),
            }
            for number, each in enumerate(self._fetcher.upstreams, 1)
        ]
        disk = {**self._cache.describe(), "is_full": self._fetcher.is_full}
        return {"role": "relay", "upstreams": upstreams, "pools": self._heads.describe(), **disk}

    def read_metrics(self) -> Iterable[Metric]:
        """Return the metrics of upstreams, heads and disk. Upstreams have the same numbers as in /status."""
        upstreams = {str(number): each for number, each in enumerate(self._fetcher.upstreams, 1)}
        received = {number: each.received_bytes for number, each in upstreams.items()}
        failed = {number: each.failed_requests for number, each in upstreams.items()}
        text = "Bytes received from an upstream."
        yield build_counter("covey_upstream_received_bytes", text, received, label="upstream")
        text = "Requests to an upstream that failed or returned wrong bytes."
        yield build_counter("covey_upstream_failures", text, failed, label="upstream")
        yield from self._heads.read_metrics()
        yield from self._cache.read_metrics()
        text = "1 if the disk or its limit is full, so that new items are served from memory."
        yield build_gauge("covey_disk_is_full", text, self._fetcher.is_full)

    async def _get_manifest(self, address: Hash, *, verify: bool, is_listed: bool) -> bytes:
        find = partial(self._cache.find_manifest, address, verify=verify)
        fetch = partial(self._fetcher.fetch_manifest, address)
        work = partial(self._obtain, address, find, fetch, is_listed=is_listed)
        return await self._flights.run(("manifest", address), work)

    async def _get_record(self, record: Hash, *, verify: bool, is_listed: bool) -> bytes:
        find = partial(self._cache.find_record, record, verify=verify)
        fetch = partial(self._fetcher.fetch_record, record)
        work = partial(self._obtain, record, find, fetch, is_listed=is_listed)
        return await self._flights.run(("record", record), work)

    async def _obtain_piece(self, digest: Hash, *, verify: bool) -> Location | memoryview:
        if self._cache.has_piece(digest):
            found = await asyncio.to_thread(self._cache.find_piece, digest, verify=verify)
            if found is not None:
                return found
        is_listed = self._cache.is_listed(digest)
        return await self._fetch(digest, partial(self._fetcher.fetch_piece, digest), is_listed=is_listed)

    async def _obtain(
        self, address: Hash, find: Callable[[], bytes | None], fetch: Callable[[], bytes], *, is_listed: bool
    ) -> bytes:
        found = await asyncio.to_thread(find)
        return found if found is not None else await self._fetch(address, fetch, is_listed=is_listed)

    async def _fetch(self, key: Hash, fetch: Callable[[], Result], *, is_listed: bool) -> Result:
        self._misses.require_promising(key, is_listed=is_listed, now=self._clock())
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, fetch)
        except ProtocolError:
            self._misses.add(key, now=self._clock(), is_listed=is_listed)
            raise

    async def _poll_forever(self) -> None:
        while True:
            await self._heads.poll()
            await asyncio.sleep(self._settings.poll_s)

    async def _preview_forever(self) -> None:
        """Fetch the pieces of exports that are being written. They are spare until a manifest lists them."""
        while True:
            await asyncio.sleep(self._settings.poll_s)
            for pool in list(self._heads.pools):
                missing = await self._previews.select_missing(pool, self._settings.spare_bytes)
                await self._run_all(asyncio.Event(), missing, self._fetch_preview)

    async def _fetch_preview(self, piece: Piece) -> None:
        await self.get_piece(piece.digest, verify=False)

    async def _abort_forever(self) -> None:
        while True:
            for upstream in self._fetcher.upstreams:
                upstream.abort_overdue()
            await asyncio.sleep(1)

    async def _mirror_forever(self, number: int) -> None:
        """Mirror an upstream after each change of its heads, and again later if something was missing."""
        news, should_wait = self._news[number], True
        while True:
            try:
                async with asyncio.timeout(_PRUNE_SECONDS if should_wait else 2 * self._settings.poll_s):
                    await news.wait()
            except TimeoutError:
                pass
            news.clear()
            try:
                should_wait = await self._mirror(number)
            except (CoveyError, OSError) as error:  # The next attempt may succeed.
                should_wait = True
                get_logger().warning("cannot mirror an upstream", upstream=number, reason=str(error))

    async def _mirror(self, number: int) -> bool:
        """Fetch what the newest policies of an upstream need, the newest first, and prune.

        Returns whether everything is on disk, or the disk is full. Ends early if a head of this upstream changes
        meanwhile.
        """
        self._fetcher.is_full = False
        named = [(heads, head) for heads in self._heads.pools.values() if (head := heads.heads.get(number)) is not None]
        policies = list_mirrored([head.mirrored for _, head in named], self._settings.keep)
        ways, run_all = [way for policy in policies for way in policy.ways], partial(self._run_all, self._news[number])
        get_record = partial(self._get_record, verify=False, is_listed=True)
        get_manifest = partial(self._get_manifest, verify=False, is_listed=True)
        is_complete = await run_all(policies, lambda policy: get_record(policy.record))
        is_complete &= await run_all(ways, lambda way: get_manifest(way.manifest))
        if is_complete:  # Pruning would remove the pieces of a missing manifest.
            await asyncio.to_thread(self._prune)
        pieces: dict[Hash, int] = {}
        for way in ways:
            listed = await asyncio.to_thread(self._cache.list_pieces, way.manifest)
            pieces |= listed or {}
            is_complete &= listed is not None
        select = partial(self._cache.select_needed, self._heads.list_mirrored(), self._settings.keep)
        needed, _ = await asyncio.to_thread(select)
        missing = [digest for digest in pieces if digest in needed and not self._cache.has_piece(digest)]
        try:
            is_complete &= await run_all(missing, self._fetch_ahead)
        except _NoRoomError:
            is_complete = False
        if pieces.keys() - needed:
            is_complete = False
            self._fetcher.report_full(f"the newest policies exceed the limit of {self._cache.max_bytes} bytes")
        for heads, head in named:
            if is_complete and heads.heads.get(number) is head:
                heads.mirrored.add(number)
        return is_complete or self._fetcher.is_full

    async def _fetch_ahead(self, digest: Hash) -> None:
        await self.get_piece(digest, verify=False)
        if not self._cache.has_piece(digest):
            raise _NoRoomError

    async def _run_all(
        self, news: asyncio.Event, items: Iterable[Item], work: Callable[[Item], Awaitable[object]]
    ) -> bool:
        """Do the work for all items concurrently. Returns whether all succeeded. Ends early if `news` is set."""
        queue, is_complete = iter(items), True

        async def run() -> None:
            nonlocal is_complete
            for item in queue:
                if news.is_set():
                    is_complete = False
                    return
                try:
                    await work(item)
                except (CoveyError, OSError) as error:  # Mirroring goes on, and tries the item again later.
                    is_complete = False
                    get_logger().debug("cannot mirror an item", reason=str(error))

        results = await asyncio.gather(*(run() for _ in range(self._settings.ahead)), return_exceptions=True)
        for error in filter(None, results):
            raise error
        return is_complete

    def _prune(self, spare_share: float = 1.0) -> None:
        settings = self._settings
        try:
            self._cache.prune(
                self._heads.list_mirrored(),
                keep=settings.keep,
                keep_datasets=settings.keep_datasets,
                spare_bytes=settings.spare_bytes,
                spare_share=spare_share,
            )
        except OSError as error:
            get_logger().warning("cannot prune", reason=str(error), root=str(self._cache.root))

    def _make_room(self) -> None:
        """Remove the older half of the spare pieces."""
        if self._clock() - self._made_room_at >= _MAKE_ROOM_SECONDS:
            self._made_room_at = self._clock()
            self._prune(spare_share=0.5)
