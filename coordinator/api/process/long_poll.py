"""Long polls: a request waits until there is an answer, and looks for one only after a commit.

Some answers depend on the time, so a request looks once a second although nothing was committed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from starlette.types import Receive

from coordinator.api.process.changes import Signal
from covey.protocol.ids import Address

LOOK_SECONDS = 1.0
SEEN_SECONDS = 10.0
"""A validator's sign of life is written at most this often."""
Answer = TypeVar("Answer")


class LongPolls:
    """The newest long poll of each validator in this process. Opening another one ends it."""

    def __init__(self) -> None:
        self._newest: dict[Address, object] = {}
        self._noted: dict[Address, tuple[float, str]] = {}
        """When the sign of life of a validator was last written, in Unix seconds, and with which contract."""

    def open(self, validator: Address) -> tuple[Address, object]:
        """Begin a poll. Whatever `validator` had open before ends."""
        token = object()
        self._newest[validator] = token
        return validator, token

    def is_due(self, validator: Address, contract: str, now: float) -> bool:
        """Return whether a validator's sign of life is to be written now, at once with another contract."""
        noted, known = self._noted.get(validator, (0.0, ""))
        return now - noted >= SEEN_SECONDS or contract != known

    def note(self, validator: Address, contract: str, now: float) -> None:
        """Note that a validator's sign of life was written."""
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
    """Call `look` after each signal and once a second, for at most `seconds`, while `is_open`.

    Returns its first answer, or None.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while is_open():
        seen = signal.count  # Before the look: what is sent meanwhile is looked at next time.
        answer = await look()
        left = deadline - loop.time()
        if answer is not None or left <= 0:
            return answer
        await signal.wait(min(LOOK_SECONDS, left), since=seen)
    return None


@contextmanager
def call_when_gone(receive: Receive, callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` if the client of a request leaves within this block. The body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        callback()

    task = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        task.cancel()
