"""Runs the messages of one job: one run at a time, and none for what an earlier run has covered.

A message says up to which commit its sender has written. A run sees all commits before it begins, so it covers the
messages about them, whenever they arrive. Numbers of commits are compared and not times, because the clocks of two
machines differ.
"""

from collections.abc import Callable
from threading import Lock

from covey.errors import TransientError
from covey.runtime.log import get_logger

WAIT_S = 60.0
"""Maximum time in seconds that a message waits for the run under way. Afterwards beat asks for another run."""


class _Turn:
    """The run about one object that is under way, and the message that waits for its end."""

    def __init__(self) -> None:
        self.running = Lock()
        self.is_awaited = False
        self.covered = -1
        """Number of a commit that the last run has seen, with all earlier ones. -1 if it failed."""


class JobRuns:
    """Example: `JobRuns("assign_tasks", assign, read_commit=database.read_commit).run(commit=17)`."""

    def __init__(self, name: str, job: Callable[..., None], *, read_commit: Callable[[], int]) -> None:
        """`job` takes the ids of a message as keyword arguments. `read_commit` is that of the database."""
        self._name, self._job, self._read_commit = name, job, read_commit
        self._lock = Lock()
        self._turns: dict[tuple[tuple[str, int], ...], _Turn] = {}

    def run(self, *, commit: int | None = None, **ids: int) -> None:
        """Run the job after the run under way, unless that one, or the one that waits for its end, covers the message.

        A TransientError is logged: beat asks for another run. All other errors are raised.
        """
        key = tuple(sorted(ids.items()))
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            if turn.is_awaited:
                return  # The run that follows has not begun, so it covers this message.
            turn.is_awaited = True
        is_free = turn.running.acquire(timeout=WAIT_S)
        with self._lock:
            turn.is_awaited = False
        if not is_free:
            get_logger().warning("a job waited too long for its run under way", job=self._name, seconds=WAIT_S, **ids)
            return
        try:
            if commit is None or commit > turn.covered:
                self._run(turn, ids)
        except TransientError as error:
            get_logger().warning("job will be asked for again", job=self._name, code=error.code, message=error.message)
        finally:
            turn.running.release()
            with self._lock:
                if ids and not turn.is_awaited:
                    self._turns.pop(key, None)

    def _run(self, turn: _Turn, ids: dict[str, int]) -> None:
        turn.covered = -1  # What a run that fails has left is not covered.
        seen = self._read_commit()
        self._job(**ids)
        turn.covered = seen
