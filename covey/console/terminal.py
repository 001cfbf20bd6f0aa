"""What commands print for people: texts of strangers made harmless, times as a clock on the wall has them."""

from datetime import datetime


def quote(text: str) -> str:
    """A stranger's text without what a terminal would obey; line ends become blanks."""
    return "".join(c if c.isprintable() else " " if c == "\n" else "?" for c in text)


def describe_time(at: int, *, now: int) -> str:
    """A Unix time in the local time zone, with the seconds from `now`.

    Example: "2026-03-01 12:00:20 CET, in 97 s", or "..., 5 s ago".
    """
    local = f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    return f"{local}, in {at - now} s" if at > now else f"{local}, {now - at} s ago"
