import threading
import time

import pytest

from coordinator.db.database import Database

pytestmark = pytest.mark.unit


def test_write_lock__a_busy_writer__lets_others_have_their_turn(database: Database):
    """A process that writes without a pause starved all others before."""
    other, stop = Database(database.url), threading.Event()

    def write_forever() -> None:
        while not stop.is_set():
            with other.write() as rows:
                rows.set_fact("busy", rows.get_fact("busy") + 1)
                time.sleep(0.01)

    busy = threading.Thread(target=write_forever)
    busy.start()
    try:
        waits = []
        for _ in range(10):
            started = time.monotonic()
            with database.write() as rows:
                rows.set_fact("a", 1)
            waits.append(time.monotonic() - started)
    finally:
        stop.set()
        busy.join()
        other.close()
    assert max(waits) < 0.5
