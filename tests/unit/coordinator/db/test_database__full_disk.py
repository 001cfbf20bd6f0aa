"""A database whose disk is full."""

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.db.database import Database
from covey.errors import TransientError

pytestmark = pytest.mark.unit


def test_write__lock_file_cannot_be_written__is_transient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk must neither end the process nor be answered as a defect."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with closing(Database(f"sqlite:///{tmp_path / 'rows.sqlite3'}")) as database:
        database.prepare()
        monkeypatch.setattr(os, "pwrite", refuse)
        with pytest.raises(TransientError, match="database_unavailable"), database.write() as rows:
            rows.set_fact("lease", 7)
        monkeypatch.undo()
        with database.write() as rows:
            rows.set_fact("lease", 8)
