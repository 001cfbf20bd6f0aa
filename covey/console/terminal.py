"""Output of commands for people: sanitised untrusted text, and times in the local time zone."""

from datetime import datetime


def quote(text: str) -> str:
    """Return untrusted text without control characters. Line ends become spaces."""
    return "".join(c if c.isprintable() else " " if c == "\n" else "?" for c in text)


def describe_time(at: int, *, now: int) -> str:
    """Format a Unix time in the local time zone, with the distance from `now` in seconds.

    Example: "2026-03-01 12:00:20 CET, in 97 s", or "..., 5 s ago".
    """
    local = f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    return f"{local}, in {at - now} s" if at > now else f"{local}, {now - at} s ago"
