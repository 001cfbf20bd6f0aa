"""Waits of commands: they say what they wait for, outlast errors that pass, and end at a deadline."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import typer

from covey.console.terminal import describe_duration, describe_time, quote
from covey.errors import TransientError

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5.0, 60.0
"""Minimum and maximum pause in seconds between two looks."""
REPEAT_SECONDS = 60.0
"""Seconds after which what is awaited is said again."""
SPARE_SECONDS = 600.0
"""Seconds that a wait may take beyond the time that the chain's rules give."""
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """What a command waits for. Example: Awaited(what="Claim when epoch 3 is final", at=1750000000, now=1749999000)."""

    what: str
    at: int | None
    """Unix time in seconds of the chain's clock when it is there. None if it is not known."""
    now: int
    """Time of the chain's clock."""

    def __str__(self) -> str:
        return self.what if self.at is None else f"{self.what}: {describe_time(self.at, now=self.now)}"

    def choose_pause(self) -> float:
        """Return the seconds until the next look: the time that is left, between the minimum and the maximum."""
        if self.at is None:
            return MIN_PAUSE_SECONDS
        return min(MAX_PAUSE_SECONDS, max(MIN_PAUSE_SECONDS, self.at - self.now))


def wait_for(look: Callable[[], Found | Awaited], *, seconds: float) -> Found | Awaited:
    """Call `look` until it returns something other than `Awaited`, or until the deadline.

    Prints on standard error what is awaited, whenever that changes and every REPEAT_SECONDS. Transient errors are
    retried until the deadline, and then raised.
    """
    begun = time.monotonic()
    waiting, said, said_at = threading.Event(), "", begun
    while True:
        now = time.monotonic()
        is_last, pause = now >= begun + seconds, MIN_PAUSE_SECONDS
        try:
            found = look()
            if not isinstance(found, Awaited) or is_last:
                return found
            topic, line, pause = found.what, str(found), found.choose_pause()
        except TransientError as error:
            if is_last:
                raise
            topic, line = error.code, f"{quote(str(error))}; retrying every {describe_duration(MIN_PAUSE_SECONDS)}"
        if topic != said or now >= said_at + REPEAT_SECONDS:
            said, said_at = topic, now
            typer.echo(line, err=True)
        waiting.wait(min(pause, max(0.0, begun + seconds - time.monotonic())))
