"""One process trains in a run's folder, and readers see whether one does."""

import fcntl
import os
from pathlib import Path
from threading import Timer

import pytest

from covey.errors import OperatorError
from covey.standalone import run_lock
from covey.standalone.run_lock import FILE, hold_run, is_held

pytestmark = pytest.mark.unit


def is_in_use(home: Path) -> bool:
    descriptor = os.open(home / FILE, os.O_RDONLY)
    try:
        return is_held(descriptor)
    finally:
        os.close(descriptor)


def test_hold_run__readers__see_it_until_it_ends(tmp_path: Path):
    home = tmp_path / "new" / "run"
    with hold_run(home):
        assert is_in_use(home)
    assert not is_in_use(home)
    assert not is_in_use(home)  # looking at it has left nothing behind


def test_hold_run__second_one__is_refused_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 0.1)
    refused = pytest.raises(OperatorError, match=f"another process trains in {tmp_path}")
    with hold_run(tmp_path), refused as raised, hold_run(tmp_path):
        raise AssertionError
    assert raised.value.code == "run_in_use"


def test_hold_run__reader_looks_at_the_same_time__is_waited_for(tmp_path: Path):
    (tmp_path / FILE).touch()
    descriptor = os.open(tmp_path / FILE, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    timer = Timer(0.2, os.close, (descriptor,))
    timer.start()
    with hold_run(tmp_path):
        pass
    timer.join()
