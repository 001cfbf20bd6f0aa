"""Tells viewers that the pool has changed, by server-sent events. One computation serves all of them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

from fastapi.sse import ServerSentEvent

from coordinator.api.process.cached_page import CachedPage
from coordinator.api.process.changes import Changes, Signal
from covey.errors import ProtocolError, TransientError
from covey.runtime.rate_limit import group_address

LEAST_SECONDS = 1.0
"""Minimum time in seconds between two events."""
MAX_VIEWERS, MAX_STREAMS_OF_ONE, MAX_STREAMS_OF_NETWORK = 2000, 16, 64
"""Maximum number of streams, of those of one address, and of those of one IPv6 network of 48 bits."""
LONGEST_SECONDS = 3600.0
"""Seconds after which a stream ends. A browser opens another one by itself."""


class Events:
    """Example: `async for event in events.stream("127.0.0.1"): ...`, while `run` runs."""

    def __init__(self, changes: Changes, overview: CachedPage, stop: asyncio.Event) -> None:
        """`overview` is sent with each event. The streams end once `stop` is set."""
        self._changes, self._overview, self._stop = changes, overview, stop
        self._signal = Signal()
        self._event: ServerSentEvent | None = None
        self._viewers = Counter[str]()
        """Open streams by address, and by network."""
        self.count = 0
        """Number of open streams."""

    async def run(self) -> None:
        """Prepare an event after each change, at most one per LEAST_SECONDS and none without viewers."""
        seen, newest = -1, b""
        while True:
            await self._changes.signal.wait(10.0, since=seen)
            seen = self._changes.signal.count
            if self.count:
                with suppress(TransientError):  # The next change is another occasion.
                    body = await self._overview.read()
                    if body != newest:
                        newest = body
                        self._event = ServerSentEvent(raw_data=body.decode(), event="overview")
                        self._signal.send()
            await asyncio.sleep(LEAST_SECONDS)

    async def stream(self) -> AsyncIterator[ServerSentEvent]:
        """Yield the newest known event if there is one, and each later one."""
        loop = asyncio.get_running_loop()
        ends_at, seen = loop.time() + LONGEST_SECONDS, self._signal.count
        if self._event is not None:
            yield self._event
        while not self._stop.is_set() and loop.time() < ends_at:
            if await self._signal.wait(1.0, since=seen):
                seen = self._signal.count
                assert self._event is not None
                yield self._event

    @contextmanager
    def enter(self, address: str) -> Iterator[None]:
        """Count a stream within the block.

        Raises ProtocolError("too_many_streams") if the address, its network, or all together have too many.
        """
        limits = {group_address(address, bits=48): MAX_STREAMS_OF_NETWORK} | {
            group_address(address): MAX_STREAMS_OF_ONE
        }
        if self.count >= MAX_VIEWERS or any(self._viewers[group] >= most for group, most in limits.items()):
            raise ProtocolError("too_many_streams", "too many streams of events are open", status=429)
        self.count += 1
        self._viewers.update(limits.keys())
        try:
            yield
        finally:
            self.count -= 1
            self._viewers -= Counter(limits.keys())  # It keeps positive counts only.
