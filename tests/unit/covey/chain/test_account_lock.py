import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from covey.chain.account_lock import lock_account, lock_file, name_account
from covey.errors import TransientError
from tests.unit.covey.chain.test_follower import ALICE, DEPLOYMENT

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "covey"


def test_lock_account__held__others_wait_and_then_say_so(state: Path):
    second = lock_account(DEPLOYMENT, ALICE, timeout_s=0.05)
    with lock_account(DEPLOYMENT, ALICE), pytest.raises(TransientError, match=f"account_busy.*{ALICE}"), second:
        raise AssertionError("two processes send at once")
    with lock_account(DEPLOYMENT, ALICE, timeout_s=0.0):
        assert [file.suffix for file in state.iterdir()] == [".lock"]
    assert state.stat().st_mode & 0o777 == 0o700


def test_lock_account__holder_is_killed__is_free(state: Path):
    """The lock is the open file's, so no stale lock is left."""
    code = f"""
import fcntl, os, signal
file = open({str(state / (name_account(DEPLOYMENT, ALICE) + ".lock"))!r}, "ab")
fcntl.flock(file, fcntl.LOCK_EX)
os.kill(os.getpid(), signal.SIGKILL)
"""
    state.mkdir()
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == -9
    with lock_account(DEPLOYMENT, ALICE, timeout_s=0.0):
        pass


def test_name_account__devnets_of_one_id__differ():
    first = replace(DEPLOYMENT, start_hash="0x" + "ab" * 32)
    assert name_account(first, ALICE) != name_account(replace(first, start_hash="0x" + "cd" * 32), ALICE)
    assert name_account(first, ALICE) == f"1-abababab-{ALICE}"


def test_lock_file__folder_cannot_be_written__goes_on_without_a_lock(tmp_path: Path):
    with lock_file(tmp_path / "missing" / "lock", ALICE):
        pass
