"""Logs of processes: their last lines, and a limit on their disk space.

A process appends to its log as long as it runs. Each log has at most one older file, with the suffix `.1`.
"""

import contextlib
import os
import re
import shutil
from pathlib import Path

MAX_LOG_BYTES = 50 << 20
"""Size of a log in bytes above which it is moved to the older file.

A process uses about twice this disk space at most.
"""
TAIL_BYTES = 16 << 10
"""Number of bytes at the end of a log that are read for its last lines."""
_ERROR = re.compile(r"covey: [a-z0-9_]+: |(\w+\.)*\w*(Error|Exception|Interrupt|Exit)\b(:|$)")
"""Pattern of the line with the error of a command, or of the last line of a traceback."""


def read_last_lines(log: Path, count: int) -> list[str]:
    """Return the last `count` lines in the last TAIL_BYTES of a log. The first one may be the end of a longer line.

    The list is empty if the log is missing, because its process continues without it.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace").strip().splitlines()[-count:]
    except FileNotFoundError:
        return []


def read_last(log: Path) -> str:
    """Return the last line of a log, or a message if the log is empty or missing."""
    return next(iter(read_last_lines(log, 1)), f"{log} is empty")


def read_error(log: Path, begun: int) -> str:
    """Return the error with which a process ended, from what it logged after the first `begun` bytes.

    It is the last line that a `covey` command or a traceback ends with, because a library may print more when a process
    exits. Without such a line, it is the last line, or a message if there is none.
    """
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begun if begun <= size else 0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except FileNotFoundError:
        lines = []
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or [f"{log} is empty"])[-1].removeprefix("covey: ")


def contains_since(log: Path, begun: int, text: str) -> bool:
    """Return whether a log contains `text` after its first `begun` bytes, or anywhere if it was truncated since then.

    Returns False if the log is missing.
    """
    try:
        with log.open("rb") as file:
            file.seek(begun if begun <= file.seek(0, os.SEEK_END) else 0)
            return text.encode() in file.read()
    except FileNotFoundError:
        return False


def rotate(log: Path) -> None:
    """Move the content of a log larger than MAX_LOG_BYTES bytes to its older file.

    A running process continues to append to the same file. Lines written between the copy and the truncation are lost.
    A missing log is ignored. Raises OSError, for example if the disk is full.
    """
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > MAX_LOG_BYTES:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)
