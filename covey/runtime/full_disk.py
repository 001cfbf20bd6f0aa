"""A disk that fills up ends the trainer with an error that says so; called by whoever of it writes."""

import errno
import re
import shutil
import sqlite3
from pathlib import Path

from covey.errors import OperatorError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ExplainFullDisk:
    """Raises OperatorError("disk_full") where there was no room within, and removes `draft`.

    A context; not a generator with `except`, because tokenizers raises a bare Exception where it cannot write.
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
            f"{self._place} has no room for {self._what}: {error}",
            fix="Free space there and start again; training goes on from the newest checkpoint",
        ) from error


def is_full(error: BaseException) -> bool:
    """Whether it says so; safetensors and tokenizers do in their message alone."""
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL
    if isinstance(error, OSError):
        return error.errno in _FULL
    found = re.search(r"\(os error (\d+)\)", str(error))
    return found is not None and int(found[1]) in _FULL
