"""The lock of a run's folder, RUN/.run.lock: one process trains in it, and readers see whether one does.

The kernel releases the lock when its process ends, however it ends.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from covey.errors import OperatorError
from covey.runtime.full_disk import ExplainFullDisk

FILE = ".run.lock"
PATIENCE_SECONDS = 2.0
"""Maximum time to wait for the lock. A reader that looks at it holds it for an instant."""


@contextmanager
def hold_run(home: Path) -> Iterator[None]:
    """Hold the lock of a run's folder, which is created if it is missing.

    Raises OperatorError("run_in_use") if another process trains in it.
    """
    with ExplainFullDisk(home, "the run's folder"):
        home.mkdir(parents=True, exist_ok=True)
        file = (home / FILE).open("a")
    with file:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise OperatorError(
                    "run_in_use",
                    f"another process trains in {home}",
                    fix="Wait until it has ended, or choose a new folder with --out",
                )
            Event().wait(0.05)
        yield


def is_held(descriptor: int) -> bool:
    """Return whether a process trains in the folder whose lock file is open. Two readers do not block each other."""
    if not _lock(descriptor, fcntl.LOCK_SH):
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
