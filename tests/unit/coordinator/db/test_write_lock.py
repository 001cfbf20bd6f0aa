import fcntl
import statistics
import threading
import time
from pathlib import Path

import pytest

from coordinator.db.database import Database
from coordinator.db.write_lock import WriteLock

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


def test_write_lock__a_busy_writer__lets_others_have_their_turn(database: Database):
    """A process that writes without a pause starved all others before.

    The median ignores the waits in which the system did not run this thread.
    """
    other, stop, written = Database(database.url), threading.Event(), list[None]()

    def write_forever() -> None:
        while not stop.is_set():
            with other.write() as rows:
                rows.set_fact("busy", rows.get_fact("busy") + 1)
                written.append(None)
                time.sleep(0.01)

    busy = threading.Thread(target=write_forever)
    busy.start()
    try:
        waits = []
        for _ in range(10):
            before = len(written)
            with database.write() as rows:
                waits.append(len(written) - before)
                rows.set_fact("a", 1)
    finally:
        stop.set()
        busy.join()
        other.close()
    assert statistics.median(waits) <= 3, "the one that is being written, and one that was before in the queue"


def is_locked(file: Path) -> bool:
    with file.open("w") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_hold__another_process_waits__has_its_turn_before_the_one_that_has_just_written(tmp_path: Path):
    one, other, order = (WriteLock(tmp_path / "rows"), WriteLock(tmp_path / "rows"), list[str]())

    def write_as_other() -> None:
        with other.hold():
            order.append("other")

    waiting, deadline = threading.Thread(target=write_as_other, daemon=True), time.monotonic() + HANG_S
    with one.hold():
        order.append("one")
        waiting.start()
        while not is_locked(tmp_path / "rows.turn"):
            assert time.monotonic() < deadline, "the other one does not wait for its turn"
            time.sleep(0.001)
    with one.hold():
        order.append("one again")
    waiting.join(HANG_S)
    assert order == ["one", "other", "one again"]
