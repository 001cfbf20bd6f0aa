"""Output of commands for people: sanitised untrusted text, and times in the local time zone."""

from dataclasses import dataclass
from datetime import datetime

LAST_TIME = 253_402_300_799
"""Last second of the year 9999. A later Unix time, such as a contract's "not yet", is no date."""
_UNITS = ((172_800, 86_400, "days"), (7200, 3600, "hours"), (120, 60, "minutes"), (0, 1, "s"))
"""Minimum duration in seconds that is shown in a unit, the seconds of the unit, and its name."""


def quote(text: str) -> str:
    """Return untrusted text without control characters. Line ends become spaces."""
    return "".join(c if c.isprintable() else " " if c == "\n" else "?" for c in text)


def describe_duration(seconds: float) -> str:
    """Format a duration for people, rounded in a unit of which there are at least two.

    Example: "97 s", "25 minutes", "3 hours", "7 days".
    """
    size, name = next((size, name) for least, size, name in _UNITS if seconds >= least or size == 1)
    return f"{round(seconds / size)} {name}"


def describe_date(at: int) -> str:
    """Format a Unix time in seconds in the local time zone, for example "2026-03-01 12:00:20 CET".

    It is "never" after the year 9999.
    """
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S %Z}" if at <= LAST_TIME else "never"


def describe_time(at: int, *, now: int) -> str:
    """Format a Unix time in the local time zone, with the distance from `now`.

    Example: "2026-03-01 12:00:20 CET, in 97 s", or "..., 3 hours ago".
    """
    if at > LAST_TIME:
        return describe_date(at)
    distance = describe_duration(abs(at - now))
    return f"{describe_date(at)}, " + (f"in {distance}" if at > now else f"{distance} ago")


@dataclass(frozen=True, slots=True)
class Moment:
    """A Unix time in seconds that prints as a date with the distance from `now`. In JSON, it is the number."""

    value: int
    now: int

    def __str__(self) -> str:
        return describe_time(self.value, now=self.now)
