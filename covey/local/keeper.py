"""`covey up`: keeps the processes of a folder running until a stop signal, and reports their state.

A process that ends with an error is restarted, first after a second and then with doubling pauses. One that has never
been steady is given up when it has failed more than MAX_RESTARTS times, because its setup is probably wrong. The others
continue without it, unless it is one of REQUIRED. Failures with a transient error do not count. A process that ends
with 0 has finished its work. Each process has a log in `logs/`.
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
from typing import TextIO

from covey.errors import OperatorError
from covey.local.folder import get_environment
from covey.local.logs import read_error
from covey.local.processes import ONE_THREAD, STOP_SECONDS, Processes, Running

LOOK_SECONDS = 0.25
ROTATE_SECONDS = 10.0
"""Seconds between two checks of the size of the logs."""
STEADY_SECONDS = 60.0
"""Seconds that a restarted process must run until it counts as running, and its next restart comes after a second."""
MAX_PAUSE = 60.0
"""Maximum number of seconds until a failed process is restarted."""
MAX_RESTARTS = 6
"""Maximum number of restarts of a process that has never been steady."""
REQUIRED = ("coordinator", "devnet", "trainer")
"""First words of the commands without which no process of a pool can work."""
REPEAT_SECONDS = 10.0
"""Seconds between two messages of a command that waits for `covey up` to end."""
LOCK_FILE = ".up.lock"


@dataclass(slots=True, kw_only=True)
class KeptProcess:
    """A process that `covey up` keeps running, with its state."""

    name: str
    command: str
    running: Running | None = None
    started_at: float = 0.0
    failures: int = 0
    """How often it has ended with an error that is not transient."""
    is_steady: bool = True
    """Whether it has run for STEADY_SECONDS since its last failure, or has never failed."""
    was_steady: bool = False
    """Whether it has ever run for STEADY_SECONDS without a failure."""
    is_given_up: bool = False
    pause: float = 1.0
    """Seconds until the restart after the next failure. They double until the process is steady again."""
    restart_at: float | None = None
    """Time of the next restart on the keeper's clock. None if the process runs or has finished its work."""
    why: str = ""
    """Last error in its log. Empty if it has not failed."""

    @property
    def state(self) -> str:
        """State of the process in words: "waits", "runs", "restarting", "failed" or "done"."""
        if self.running is None:
            return "waits"
        if self.is_given_up:
            return "failed"
        if self.restart_at is None and self.running.exit_code == 0:
            return "done"
        return "runs" if self.is_steady else "restarting"


class Keeper:
    """The processes of one folder. `say` prints a line for the user."""

    def __init__(
        self,
        folder: Path,
        commands: Mapping[str, str],
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kept = [KeptProcess(name=name, command=command) for name, command in commands.items()]
        self._folder, self._say, self._clock, self._rotated_at = folder, say, clock, clock()
        self._log_trouble: str | None = None
        environment = ONE_THREAD | get_environment()
        self._processes = Processes(
            folder / "logs", environment=environment, cwd=folder.resolve(), is_alone=len(commands) == 1
        )

    def prepare(self) -> None:
        """Start the imports of the processes in the background."""
        self._processes.prepare()

    def start(self, *names: str) -> None:
        """Start the processes with these names. Without names, start all that have not been started."""
        for kept in self.kept:
            if kept.running is None and (not names or kept.name in names):
                self._start(kept)

    def look(self) -> None:
        """Restart failed processes whose pause is over, and limit the size of the logs.

        Raises OperatorError("keeps_failing") if a process is given up without which the others cannot work, or if no
        other process is left.
        """
        now = self._clock()
        if now >= self._rotated_at + ROTATE_SECONDS:
            self._rotated_at = now
            self._rotate_logs()
        for kept in self.kept:
            if kept.is_given_up or kept.running is None:
                continue
            if kept.restart_at is not None and now >= kept.restart_at:
                self._start(kept)
            elif kept.restart_at is None and kept.running.exit_code not in (None, 0):
                self._note_failure(kept, now)
            elif kept.restart_at is None and now >= kept.started_at + STEADY_SECONDS:
                kept.is_steady, kept.was_steady, kept.pause = True, True, 1.0

    def _rotate_logs(self) -> None:
        """Rotate the logs, and report a problem with them when it begins.

        The processes continue, because a full disk may have space again later.
        """
        trouble = self._processes.rotate_logs()
        if trouble not in (None, self._log_trouble):
            self._say(trouble)
        self._log_trouble = trouble

    def _start(self, kept: KeptProcess) -> None:
        kept.running = self._processes.start(kept.name, *shlex.split(kept.command))
        kept.started_at, kept.restart_at = self._clock(), None

    def _note_failure(self, kept: KeptProcess, now: float) -> None:
        assert kept.running is not None
        kept.why, kept.is_steady = read_error(kept.running.log, kept.running.begun), False
        kept.failures += kept.running.exit_code != os.EX_TEMPFAIL
        if kept.failures > MAX_RESTARTS and not kept.was_steady:
            self._give_up(kept)
            return
        kept.restart_at = now + kept.pause
        self._say(
            f"{kept.name} ended with exit code {kept.running.exit_code} and restarts in {kept.pause:.0f} s; its last "
            f"error is: {kept.why}"
        )
        kept.pause = min(2 * kept.pause, MAX_PAUSE)

    def _give_up(self, kept: KeptProcess) -> None:
        kept.is_given_up = True
        is_last = all(each.state in ("failed", "done") for each in self.kept)
        if is_last or shlex.split(kept.command)[0] in REQUIRED:
            raise self._explain(kept, "so all processes are stopped")
        again = f"start it again with: cd {shlex.quote(str(self._folder))} && covey {kept.command}"
        self._say(f"{kept.name} failed {kept.failures} times and is given up; its last error is: {kept.why}; {again}")

    def _explain(self, kept: KeptProcess, effect: str) -> OperatorError:
        assert kept.running is not None
        return OperatorError(
            "keeps_failing",
            f"{kept.name} failed {kept.failures} times, {effect}; its last error is: {kept.why.removesuffix('.')}",
            fix=f"Correct the cause, which {kept.running.log} explains, and run covey up {self._folder} again",
        )

    def require_none_failed(self) -> None:
        """Raise OperatorError("keeps_failing") with the first process that was given up."""
        for kept in self.kept:
            if kept.is_given_up:
                raise self._explain(kept, "so it was given up")

    def stop(self) -> None:
        """Stop all processes. A process is stopped before those that it depends on."""
        self._processes.stop(self._say)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock while `covey up` runs. Raises OperatorError("already_up") if another process holds it."""
    with (folder / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise OperatorError(
                "already_up",
                f"the processes of {folder} are already running, managed by process {file.read().strip()}",
                fix=f"Stop them with covey down {folder}",
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def stop_keeper(
    folder: Path, *, seconds: float = sum(STOP_SECONDS) + 20.0, say: Callable[[str], None] = lambda _: None
) -> bool:
    """Ask the folder's `covey up` to end, wait for it, and return whether there was one.

    A killed `covey up` leaves its process id in the lock file until the next one overwrites it. An id is
    therefore used only if two consecutive reads return it. `say` is called with a message every REPEAT_SECONDS.
    Raises OperatorError("still_up") after `seconds`.
    """
    try:
        file = (folder / LOCK_FILE).open("r")
    except OSError:
        return False
    begun, before, is_asked = time.monotonic(), "", False
    say_at = begun + REPEAT_SECONDS
    with file:
        while _is_locked(file):
            file.seek(0)
            text = file.read().strip()
            if text.isdecimal() and text == before and not is_asked:
                is_asked = True
                _ask_to_end(folder, int(text))
            before, now = text, time.monotonic()
            pid = text or "(id unknown)"
            if now >= say_at:
                say_at += REPEAT_SECONDS
                left = begun + seconds - now
                say(f"waiting at most {left:.0f} s more for process {pid} to stop the processes of {folder}")
            if now >= begun + seconds:
                raise OperatorError(
                    "still_up",
                    f"the covey up process {pid} has not ended after {seconds:.0f} s",
                    fix=f"Kill it with kill -9 {pid}",
                )
            threading.Event().wait(0.1)
    return is_asked


def find_keeper(folder: Path) -> int | None:
    """Return the process id of the folder's `covey up`. None if it does not run. 0 if its id is not written yet."""
    try:
        file = (folder / LOCK_FILE).open("r")
    except OSError:
        return None
    with file:
        if not _is_locked(file):
            return None
        text = file.read().strip()
        return int(text) if text.isdecimal() else 0


def _is_locked(file: TextIO) -> bool:
    """Return whether another process holds the lock.

    The test uses a shared lock, so that two readers do not block each other.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _ask_to_end(folder: Path, pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:  # it has just ended
        pass
    except PermissionError as error:
        raise OperatorError(
            "not_yours",
            f"the processes of {folder} are managed by process {pid}, which belongs to another user",
            fix="Run covey down as that user",
        ) from error
