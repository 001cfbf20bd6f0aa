"""Logs of processes: their last lines, and a limit on what they take of the disk.

A log is a file that its process appends to for as long as it runs.  Each has at most one older part beside it, `.1`.
"""

import contextlib
import os
import shutil
from pathlib import Path

LONGEST_LOG = 50 << 20
"""Size in bytes above which a log becomes the older part, so that a process keeps at most twice as much on disk."""
TAIL_BYTES = 16 << 10
"""How far from its end a log is read for its last lines."""


def read_last_lines(log: Path, count: int) -> list[str]:
    """The last `count` lines of a log, at most TAIL_BYTES of them; the first may be the end of a longer one.

    Empty if the log is missing: its process goes on without it.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace").strip().splitlines()[-count:]
    except FileNotFoundError:
        return []


def read_last(log: Path) -> str:
    """The last line of a log."""
    return next(iter(read_last_lines(log, 1)), f"nothing in {log}")


def has_said(log: Path, begun: int, text: str) -> bool:
    """Whether a log holds `text` after its first `begun` bytes, or after its beginning if it was cut since.

    False if the log is missing.
    """
    try:
        with log.open("rb") as file:
            file.seek(begun if begun <= file.seek(0, os.SEEK_END) else 0)
            return text.encode() in file.read()
    except FileNotFoundError:
        return False


def rotate(log: Path) -> None:
    """Move what a log of more than LONGEST_LOG bytes holds to its older part.

    The file stays the one that a running process appends to; lines that come between the copy and the cut are lost.
    A missing log is left missing.  Raises OSError, for example if the disk is full.
    """
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LONGEST_LOG:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)
