"""Makes the trainer end with a clear error if the disk is full."""

import errno
import re
import shutil
import sqlite3
from pathlib import Path

from covey.errors import OperatorError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ExplainFullDisk:
    """Context that removes `draft` and raises OperatorError("disk_full") if its block failed because the disk is full.

    It is a class, because a generator would need `except Exception`: tokenizers raises a bare Exception if it cannot
    write.
    """

    def __init__(self, place: Path, what: object, *, draft: Path | None = None) -> None:
        self._place, self._what, self._draft = place, what, draft

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or not is_full(error):
            return
        if self._draft is not None:
            shutil.rmtree(self._draft, ignore_errors=True)
        raise OperatorError(
            "disk_full",
            f"the disk of {self._place} is full, so {self._what} could not be written: {error}",
            fix="Free space on this disk and start again; training resumes from the newest checkpoint",
        ) from error


def is_full(error: BaseException) -> bool:
    """Return whether an error means that the disk is full.

    Safetensors and tokenizers report this only in the message.
    """
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL
    if isinstance(error, OSError):
        return error.errno in _FULL
    match = re.search(r"\(os error (\d+)\)", str(error))
    return match is not None and int(match[1]) in _FULL
