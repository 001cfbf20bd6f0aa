"""The order in which a worker stops: its stages end one after the other, each when no more input can reach it."""

import asyncio
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Events that end the stages, in the order in which they are set after the stop signal."""

    work_over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no lease waits for the engine and no live lease is in it."""
    signing_over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when everything that was generated is signed."""
    all_over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a last attempt to send every signed submission begins. Those that fail are sent after the next start."""
