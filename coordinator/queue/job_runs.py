"""Runs the messages of one job. Runs about the same object do not overlap, and covered messages cause no run.

A message contains the number of its sender's last commit. A run sees all commits before its beginning, so it covers the
messages about them, whenever they arrive. Commit numbers are compared instead of times, because the clocks of two
machines differ. The next run handles all receipts of messages that arrive during a run.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from coordinator.queue.job_meters import JobMeters
from covey.errors import TransientError
from covey.runtime.log import get_logger

WAIT_SECONDS = 60.0
"""Maximum time in seconds that a message waits for the current run. Afterwards a sweep requests another run."""


@dataclass(slots=True)
class JobMetrics:
    """Numbers of the runs of one job in this process."""

    runs: int = 0
    """Number of runs that have ended."""
    failures: int = 0
    """Number of runs that have raised an error."""
    seconds: float = 0.0
    """Seconds spent in runs."""


class _Turn:
    """The current run about one object, and the message that waits for its end."""

    def __init__(self) -> None:
        self.running = Lock()
        self.is_awaited = False
        self.wanted = -1.0
        """Number of the newest commit that the next run must see. Infinity if a run is needed in any case."""
        self.covered = -1
        """Number of the newest commit that the last run has certainly seen. -1 if it failed."""
        self.receipts: set[str] = set()
        """Receipts in the messages since the last run."""
        self.ids: dict[str, int] = {}
        """Highest ids in the messages since the last run of a cumulative job."""


class JobRuns:
    """Example: `JobRuns("close_epoch", close, read_commit=database.read_commit).run(commit=17, epoch=3)`."""

    def __init__(
        self,
        name: str,
        job: Callable[..., None],
        *,
        read_commit: Callable[[], int],
        meters: JobMeters | None = None,
        is_cumulative: bool = False,
    ) -> None:
        """Create runs of `job`, which takes the ids and the receipts of a message as keyword arguments.

        `read_commit` is `Database.read_commit`, and `is_cumulative` that of `JobRoute`.
        """
        self._is_cumulative = is_cumulative
        self.name, self._job, self._read_commit = name, job, read_commit
        self._lock = Lock()
        self._turns: dict[tuple[tuple[str, int], ...], _Turn] = {}
        self._failures = 0
        """Number of consecutive failed runs."""
        self.metrics = JobMetrics()
        self.meters = meters or JobMeters()

    def run(self, *, receipts: Iterable[str] = (), commit: int | None = None, **ids: int) -> None:
        """Run the job after the current run, unless an earlier run or a waiting message covers this message.

        Raises the errors of the job. A TransientError is logged at the first and the fourth consecutive failure.
        """
        key = () if self._is_cumulative else tuple(sorted(ids.items()))
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            turn.wanted = max(turn.wanted, math.inf if commit is None or ids else commit)
            turn.receipts.update(receipts)
            turn.ids = {name: max(number, turn.ids.get(name, number)) for name, number in ids.items()}
            if turn.is_awaited:
                return  # The waiting message covers this one, too.
            turn.is_awaited = True
        is_free = turn.running.acquire(timeout=WAIT_SECONDS)
        with self._lock:
            turn.is_awaited = False
            wanted, turn.wanted = turn.wanted, -1.0
            taken, turn.receipts = turn.receipts, set()
            ids, turn.ids = turn.ids, {}
        if not is_free:
            get_logger().warning(
                "a job waited too long for its current run", job=self.name, seconds=WAIT_SECONDS, **ids
            )
            return
        try:
            if taken:
                self._run(turn, ids | {"receipts": sorted(taken)})
            elif wanted > turn.covered:
                self._run(turn, ids)
        except TransientError as error:
            with self._lock:
                turn.receipts |= taken  # For the retry of this message.
            if self._failures in (1, 4):
                get_logger().warning("a job will be tried again", job=self.name, code=error.code, message=error.message)
            raise
        finally:
            with self._lock:  # Otherwise a message in between could start an overlapping run.
                turn.running.release()
                if key and not turn.is_awaited:
                    self._turns.pop(key, None)

    def _run(self, turn: _Turn, arguments: dict[str, Any]) -> None:
        turn.covered = -1  # A run that fails covers nothing.
        begun, has_failed = time.monotonic(), True
        try:
            seen = self._read_commit()
            self._job(**arguments)
            turn.covered, has_failed = seen, False
        finally:
            seconds = time.monotonic() - begun
            self.meters.note_run(self.name, seconds=seconds, has_failed=has_failed)
            with self._lock:
                self._failures = self._failures + 1 if has_failed else 0
                self.metrics.runs += 1
                self.metrics.failures += has_failed
                self.metrics.seconds += seconds
