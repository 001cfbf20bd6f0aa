"""Long polls: a request waits until there is a result, and looks for one after each commit.

Some results depend on the time, so a request also looks once a second while nothing is committed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from starlette.types import Receive

from coordinator.api.process.changes import Signal
from covey.protocol.ids import Address

LOOK_SECONDS = 1.0
"""Maximum time in seconds between two looks for a result."""
SEEN_SECONDS = 10.0
"""Minimum time in seconds between two writes of the time when a validator was last seen."""
Answer = TypeVar("Answer")


class LongPolls:
    """The newest long poll of each validator in this process. Opening another poll ends it."""

    def __init__(self) -> None:
        self._newest: dict[Address, object] = {}
        self._noted: dict[Address, tuple[float, str]] = {}
        """Unix time when each validator was last written as seen, and the execution contract that was written."""

    def open(self, validator: Address) -> tuple[Address, object]:
        """Open a poll, which ends any earlier poll of `validator`."""
        token = object()
        self._newest[validator] = token
        return validator, token

    def is_due(self, validator: Address, contract: str, now: float) -> bool:
        """Return whether a validator must be written as seen now. A changed contract is written at once."""
        noted, known = self._noted.get(validator, (0.0, ""))
        return now - noted >= SEEN_SECONDS or contract != known

    def note(self, validator: Address, contract: str, now: float) -> None:
        """Note that a validator was written as seen."""
        self._noted[validator] = now, contract

    def is_open(self, poll: tuple[Address, object]) -> bool:
        """Return whether a poll is the newest one of its validator."""
        validator, token = poll
        return self._newest.get(validator) is token


async def wait_for(
    signal: Signal,
    seconds: float,
    look: Callable[[], Awaitable[Answer | None]],
    *,
    is_open: Callable[[], bool] = lambda: True,
) -> Answer | None:
    """Call `look` at first, after each signal, and once a second. Return its first result that is not None.

    Returns None after `seconds` seconds, or once `is_open()` is false.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while is_open():
        seen = signal.count  # Read before the look, so that a signal during it is not missed.
        answer = await look()
        left = deadline - loop.time()
        if answer is not None or left <= 0:
            return answer
        await signal.wait(min(LOOK_SECONDS, left), since=seen)
    return None


@contextmanager
def call_when_gone(receive: Receive, callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` if the client disconnects within this block. The request's body must have been read before."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        callback()

    task = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        task.cancel()
