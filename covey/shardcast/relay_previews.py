"""Previews of exports at a relay, and the budget for fetching their pieces.

A preview is not signed, so an upstream that invents pieces could cost a relay bandwidth and disk. Each pool has a
budget in bytes. It is refilled when the pool's preview ends, but at most once in `_REFILL_SECONDS`.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from covey.errors import CoveyError, ProtocolError
from covey.protocol.ids import Hash
from covey.protocol.pieces import Piece
from covey.protocol.preview import parse_preview
from covey.shardcast.flights import Flights, Misses
from covey.shardcast.relay_fetch import RelayFetcher

_REFILL_SECONDS = 60.0
"""Minimum time in seconds between two refills of a pool's budget. A relay prunes spare pieces at the same interval."""
_MAX_POOLS = 64
"""Maximum number of pools whose previews are remembered."""


@dataclass(slots=True)
class _Preview:
    """Last answer for one pool. Times are those of the relay's clock."""

    data: bytes | None = None
    """Rows as an upstream sent them. None if no upstream has a preview."""
    checked_at: float = float("-inf")
    filled_at: float = float("-inf")
    left: float = 0.0
    """Remaining budget in bytes."""
    asked: set[Hash] = field(default_factory=set)
    """Pieces of the preview that the relay has tried to fetch."""


class RelayPreviews:
    """Previews of all pools that a relay follows. Methods must be called in the event loop."""

    def __init__(self, fetcher: RelayFetcher, *, fresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """A preview is served for `fresh_s` seconds without asking the upstreams."""
        self._fetcher, self._fresh_s, self._clock = fetcher, fresh_s, clock
        self._previews: dict[int, _Preview] = {}
        self._flights = Flights(most=_MAX_POOLS)
        self._misses = Misses(memory_s=fresh_s)
        self._threads = ThreadPoolExecutor(2, "preview")

    async def get(self, pool: int) -> bytes:
        """Return the rows of a pool's preview. Raises ProtocolError("not_found") if no upstream has one."""
        known = self._previews.get(pool)
        if known is None or self._clock() - known.checked_at > self._fresh_s:
            known = await self._flights.run(pool, partial(self._refresh, pool))
        if known.data is None:
            raise ProtocolError("not_found", f"no upstream has a preview of pool {pool}", status=404)
        return known.data

    async def select_missing(self, pool: int, budget: float) -> list[Piece]:
        """Return the pieces to fetch now, and subtract them from the pool's budget. `budget` is its size in bytes."""
        try:
            rows = parse_preview(await self.get(pool))
        except CoveyError:
            rows = ()
        preview = self._previews.setdefault(pool, _Preview())
        if not rows:
            preview.asked.clear()
        is_fillable = not preview.asked and self._clock() - preview.filled_at >= _REFILL_SECONDS
        if is_fillable:
            preview.left, preview.filled_at = budget, self._clock()
        chosen = []
        for piece, _ in rows:
            if piece.digest in preview.asked or self._fetcher.cache.has_piece(piece.digest):
                continue
            if piece.size > preview.left:
                break
            preview.left -= piece.size
            preview.asked.add(piece.digest)
            chosen.append(piece)
        return chosen

    async def close(self) -> None:
        """End all requests."""
        await self._flights.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _refresh(self, pool: int) -> _Preview:
        self._misses.require_promising(pool, is_listed=False, now=self._clock())
        data: bytes | None = None
        try:
            fetch = partial(self._fetcher.fetch_preview, pool)
            data = await asyncio.get_running_loop().run_in_executor(self._threads, fetch)
        except ProtocolError:  # No upstream has one.
            self._misses.add(pool, now=self._clock(), is_listed=pool in self._previews)
        preview = self._previews.setdefault(pool, _Preview())
        preview.data, preview.checked_at = data, self._clock()
        while len(self._previews) > _MAX_POOLS:
            del self._previews[next(iter(self._previews))]
        return preview
