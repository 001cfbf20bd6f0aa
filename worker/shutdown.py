"""The order in which a worker stops: its stages end one after another, each once no more input can reach it."""

import asyncio
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Events that end the stages after the stop signal, in the order in which they are set."""

    work_over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no lease waits for the engine and no live lease is in it."""
    signing_over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all generated tasks are signed."""
    all_over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last attempt to send every signed submission begins.

    Failed submissions are sent after the next start.
    """
