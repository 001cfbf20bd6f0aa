"""Runs the messages of one job: one run at a time about the same object, and none for what an earlier run has covered.

A message says up to which commit its sender has written. A run sees all commits before it begins, so it covers the
messages about them, whenever they arrive. Numbers of commits are compared and not times, because the clocks of two
machines differ. Receipts of messages that arrive during a run are handled together by the next one.
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
"""Maximum time in seconds that a message waits for the run under way. Afterwards a sweep asks for another run."""


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
    """The run about one object that is under way, and the message that waits for its end."""

    def __init__(self) -> None:
        self.running = Lock()
        self.is_awaited = False
        self.wanted = -1.0
        """Number of the newest commit that the messages since the last run are about. Infinity for any run."""
        self.covered = -1
        """Number of a commit that the last run has seen, with all earlier ones. -1 if it failed."""
        self.receipts: set[str] = set()
        """Receipts that the messages since the last run are about."""


class JobRuns:
    """Example: `JobRuns("close_epoch", close, read_commit=database.read_commit).run(commit=17, epoch=3)`."""

    def __init__(
        self, name: str, job: Callable[..., None], *, read_commit: Callable[[], int], meters: JobMeters | None = None
    ) -> None:
        """`job` takes the ids and the receipts of a message as keyword arguments. `read_commit` is the database's."""
        self.name, self._job, self._read_commit = name, job, read_commit
        self._lock = Lock()
        self._turns: dict[tuple[tuple[str, int], ...], _Turn] = {}
        self._failures = 0
        """Number of runs that have failed in succession."""
        self.metrics = JobMetrics()
        self.meters = meters or JobMeters()

    def run(self, *, receipts: Iterable[str] = (), commit: int | None = None, **ids: int) -> None:
        """Run the job after the run under way, unless that one, or the one that waits for its end, covers the message.

        Raises the errors of the job. A TransientError is logged at the first and the fourth failure in succession.
        """
        key = tuple(sorted(ids.items()))
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            turn.wanted = max(turn.wanted, math.inf if commit is None else commit)
            turn.receipts.update(receipts)
            if turn.is_awaited:
                return  # The message that waits for the run under way stands for this one too.
            turn.is_awaited = True
        is_free = turn.running.acquire(timeout=WAIT_SECONDS)
        with self._lock:
            turn.is_awaited = False
            wanted, turn.wanted = turn.wanted, -1.0
            taken, turn.receipts = turn.receipts, set()
        if not is_free:
            get_logger().warning(
                "a job waited too long for its run under way", job=self.name, seconds=WAIT_SECONDS, **ids
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
                get_logger().warning("job will be tried again", job=self.name, code=error.code, message=error.message)
            raise
        finally:
            with self._lock:  # A message in between would run the object with a turn of its own.
                turn.running.release()
                if ids and not turn.is_awaited:
                    self._turns.pop(key, None)

    def _run(self, turn: _Turn, arguments: dict[str, Any]) -> None:
        turn.covered = -1  # What a run that fails has left is not covered.
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
