"""How a worker ends: its stages stop one after the other, each when nothing reaches it any more."""

import asyncio
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Events in the order in which they are set after the stop signal."""

    work_over: asyncio.Event = field(default_factory=asyncio.Event)
    """No lease waits for the engine, and none is in it."""
    signing_over: asyncio.Event = field(default_factory=asyncio.Event)
    """All that was generated is signed."""
    all_over: asyncio.Event = field(default_factory=asyncio.Event)
    """What is signed was sent once; the rest is sent after the next start."""
