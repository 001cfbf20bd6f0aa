"""`covey up`: keeps the processes of a folder running until a stop signal, and says how they are.

A process that ends with an error is started again, after a second and then after twice as long each time; one that
ends with 0 has done its work.  Each has its log in `logs/`.
"""

import fcntl
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from covey.errors import OperatorError
from covey.local.logs import read_last
from covey.local.processes import ONE_THREAD, STOP_SECONDS, Processes, Running

LOOK_SECONDS = 0.25
ROTATE_SECONDS = 10.0
"""Time between two looks at the size of the logs."""
STEADY_SECONDS = 60.0
"""A process that ran so long starts again after a second, however often it failed before."""
LONGEST_BREAK = 60.0
LOCK_FILE = ".up.lock"


@dataclass(slots=True, kw_only=True)
class Kept:
    """One process and how it is."""

    name: str
    command: str
    running: Running | None = None
    started_at: float = 0.0
    failures: int = 0
    """Ends with an error since it last ran for STEADY_SECONDS."""
    again_at: float | None = None
    """When it is started again, by the keeper's clock; None: it runs or has done its work."""

    @property
    def state(self) -> str:
        """Example: "runs", "done", "failed, again in a moment"."""
        if self.again_at is not None:
            return "failed, starts again"
        if self.running is None:
            return "waits"
        return "runs" if self.running.exit_code is None else "done"


class Keeper:
    """The processes of one folder.  `say` shows a line to the person in front of the screen."""

    def __init__(
        self,
        folder: Path,
        commands: Mapping[str, str],
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kept = [Kept(name=name, command=command) for name, command in commands.items()]
        self._say, self._clock, self._rotated_at = say, clock, clock()
        self._processes = Processes(folder / "logs", environment=ONE_THREAD | os.environ, cwd=folder.resolve())

    def prepare(self) -> None:
        """Import what the processes import while the caller does something else."""
        self._processes.prepare()

    def start(self, *names: str) -> None:
        """Start these processes, by default all that have not been started."""
        for kept in self.kept:
            if kept.running is None and (not names or kept.name in names):
                self._start(kept)

    def look(self) -> None:
        """Start again what has failed and whose break is over; keep the logs within their size."""
        now = self._clock()
        if now >= self._rotated_at + ROTATE_SECONDS:
            self._rotated_at = now
            self._processes.rotate_logs()
        for kept in self.kept:
            if kept.again_at is not None and now >= kept.again_at:
                self._start(kept)
            elif kept.again_at is None and kept.running is not None and kept.running.exit_code not in (None, 0):
                self._note_failure(kept, now)

    def _start(self, kept: Kept) -> None:
        kept.running = self._processes.start(kept.name, *shlex.split(kept.command))
        kept.started_at, kept.again_at = self._clock(), None

    def _note_failure(self, kept: Kept, now: float) -> None:
        assert kept.running is not None
        kept.failures = 1 if now - kept.started_at >= STEADY_SECONDS else kept.failures + 1
        pause = min(LONGEST_BREAK, 2.0 ** (kept.failures - 1))
        kept.again_at = now + pause
        last = read_last(kept.running.log)
        self._say(f"{kept.name} ended with {kept.running.exit_code}, starts again in {pause:.0f} s: {last}")

    def stop(self) -> None:
        """End all, those that depend on others first."""
        self._processes.stop(self._say)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder while `covey up` runs.  Raises OperatorError("already_up") if another one does."""
    with (folder / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise OperatorError(
                "already_up",
                f"the processes of {folder} run already, kept by process {file.read().strip()}",
                fix=f"End them with covey down {folder}",
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
        file.truncate(0)


def stop_keeper(folder: Path, *, seconds: float = sum(STOP_SECONDS) + 20.0) -> bool:
    """Ask the folder's `covey up` to end and wait for it; whether there was one.

    Raises OperatorError("still_up") after so many seconds.
    """
    try:
        file = (folder / LOCK_FILE).open("r+")
    except OSError:
        return False
    deadline, pid = time.monotonic() + seconds, None
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                text = file.read().strip()
                if pid is None and text:  # empty: it has the lock and has not written yet
                    pid = int(text)
                    os.kill(pid, signal.SIGTERM)
                if time.monotonic() >= deadline:
                    raise OperatorError(
                        "still_up",
                        f"process {pid} has not ended after {seconds:.0f} s",
                        fix=f"End it with kill -9 {pid}",
                    ) from None
                threading.Event().wait(0.1)
            else:
                return pid is not None
