"""The processes of a network on one machine: started in sessions of their own, watched, and ended whatever happens.

They are forked from one server that has imported the heavy libraries once: a dozen processes that each import torch and
transformers take five seconds of a core and 400 MB each before they do anything.  A process cannot use CUDA after a
fork of one that has, so on a machine with an accelerator each starts as a new interpreter.

The server reports how its children end.  A child outlives it, and is then watched by a pipe of its own.
"""

import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from setproctitle import setproctitle

from covey.errors import OperatorError
from covey.local.logs import read_last_lines, rotate

KILL_SECONDS = 10.0
"""Timeout for the end of a process after SIGKILL."""
STOP_SECONDS = (30.0, 60.0, 10.0, 10.0)
"""Timeout of each phase of `Processes.stop`, after which what still runs in it is killed."""
SAY_SECONDS = 5.0
"""A phase that takes longer is named to the person in front of the screen."""
STOP_PHASES = {"trainer": 1, "coordinator": 2, "origin": 2, "relay": 2, "devnet": 3}
"""Phase in which a command ends, by its first word; all other commands end in phase 0.

A process ends before those that it needs.  Workers hand in their last work, and the trainer its last policy, while the
coordinator still runs; the coordinator sends its last transactions while the chain still runs.
"""
LOST = 255
"""Exit status that multiprocessing makes up for a child of a server that is gone."""
PRELOAD = "covey.local.preload"
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "VIRTUAL_ENV")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Several busy processes with more threads collapse on a small machine."""
ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files of NVIDIA's and AMD's drivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One process of the network.  Example: name="worker-1"."""

    name: str
    process: BaseProcess
    log: Path
    begun: int
    """Size of the log in bytes when the process was started."""
    phase: int
    """Place in the order of ending, see STOP_PHASES."""
    life: Connection
    """Reading end of a pipe whose writing end the process holds until it ends."""

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the process's session and group."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit status; negative: the number of the signal that ended the process; None while it runs."""
        code = self.process.exitcode
        return None if code == LOST and not self.life.poll() else code

    def wait(self, seconds: float) -> int:
        """Wait for the end and return the exit status; raise TimeoutError after so many seconds."""
        deadline = time.monotonic() + seconds
        self.process.join(seconds)
        if self.process.exitcode == LOST:
            self.life.poll(max(0.0, deadline - time.monotonic()))
        if self.exit_code is None:
            raise TimeoutError(f"{self.name} still runs after {seconds} s")
        return self.exit_code

    def signal(self, number: signal.Signals) -> None:
        """Signal the process's whole session, so that its children get it too."""
        if self.exit_code is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # it has only just been started and leads no session yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)


class Processes:
    """Starts `covey ...` commands and ends them all.

    `logs` is the folder of their output, `cwd` the one that they run in, `environment` all that they see.  One that
    `is_alone` is not forked: a server that imports what all roles need costs more than it saves.
    """

    def __init__(
        self, logs: Path, *, environment: Mapping[str, str], cwd: Path | None = None, is_alone: bool = False
    ) -> None:
        self._logs, self._environment, self._cwd = logs, dict(environment), cwd or Path.cwd()
        self.running: list[Running] = []
        self._is_forking = not is_alone and not any(map(os.path.exists, ACCELERATORS))
        self._build_process: Callable[..., BaseProcess] = multiprocessing.get_context("spawn").Process
        if self._is_forking:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([PRELOAD])
            self._build_process = context.Process

    def prepare(self) -> None:
        """Have the server import while the caller does something else; `start` waits for it."""
        if self._is_forking:
            before = dict(os.environ)
            # Libraries read it when they are imported.  The server's own socket stays where this process has its files.
            os.environ.update(self._environment | {"TMPDIR": tempfile.gettempdir()})
            try:
                forkserver.ensure_running()
            except OSError as error:  # a socket's path has at most 107 bytes
                folder = tempfile.gettempdir()
                raise OperatorError(
                    "no_fork_server", f"no process can be started from {folder}: {error}", fix="Set TMPDIR to /tmp"
                ) from error
            finally:
                os.environ.clear()
                os.environ.update(before)

    def start(self, name: str, *arguments: str, module: str = "covey") -> Running:
        """Run `covey <arguments>`, or another module with them; its output goes to a log file."""
        log = self._logs / f"{name}.log"
        self._logs.mkdir(parents=True, exist_ok=True)  # here, since somebody may delete it while others run
        log.touch()
        self.prepare()
        life, held = multiprocessing.Pipe(duplex=False)
        become = (module, arguments, str(log.resolve()), str(self._cwd), self._environment, held)
        process, begun = self._build_process(target=_run_module, args=become, name=name), log.stat().st_size
        process.start()
        held.close()
        phase = STOP_PHASES.get(next(iter(arguments), ""), 0)
        running = Running(name=name, process=process, log=log, begun=begun, phase=phase, life=life)
        self.running = [*(each for each in self.running if each.name != name), running]
        return running

    def get(self, name: str) -> Running:
        return next(each for each in self.running if each.name == name)

    def has_ended(self, name: str) -> bool:
        return self.get(name).exit_code is not None

    def kill(self, name: str) -> None:
        """End a process at once, as a crash would: no signal handler runs."""
        running = self.get(name)
        running.signal(signal.SIGKILL)
        running.wait(KILL_SECONDS)

    def rotate_logs(self) -> str | None:
        """Keep all logs within their size; return why the last one that cannot be moved cannot, None if all are."""
        trouble = None
        for running in self.running:
            try:
                rotate(running.log)
            except OSError as error:
                trouble = f"{running.log} cannot be moved to its older part: {error.strerror}"
        return trouble

    def require_alive(self, *, ended: tuple[str, ...] = ()) -> None:
        """Raise OperatorError when a process has died; those in `ended` may have ended with 0."""
        for running in self.running:
            code = running.exit_code
            if code is None or (code == 0 and running.name in ended):
                continue
            tail = "\n".join(read_last_lines(running.log, 5))
            raise OperatorError("process_died", f"{running.name} ended with {code}:\n{tail}", fix=f"Read {running.log}")

    def stop(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Ask all to end, those that depend on others first, and kill what does not within its phase's timeout.

        `say` is given a line about what takes long.
        """
        for phase, seconds in enumerate(STOP_SECONDS):
            _end([running for running in self.running if running.phase == phase], seconds, say)


def _end(ending: Sequence[Running], seconds: float, say: Callable[[str], None]) -> None:
    """Ask these processes to end, and kill what still runs after so many seconds."""
    started = time.monotonic()
    for running in ending:
        running.signal(signal.SIGTERM)
    for limit in sorted({min(SAY_SECONDS, seconds), seconds}):
        for running in ending:
            with contextlib.suppress(TimeoutError):
                running.wait(max(0.0, started + limit - time.monotonic()))
        late = ", ".join(running.name for running in ending if running.exit_code is None)
        if late and limit < seconds:
            say(f"waiting for {late}, for at most {seconds - limit:.0f} s more")
        elif late:
            say(f"killing {late}, still running after {seconds:.0f} s")
    for running in ending:
        running.signal(signal.SIGKILL)
    for running in ending:
        running.wait(KILL_SECONDS)


def build_environment(scratch: Path) -> dict[str, str]:
    """The environment of a network that is for show: no secret of its starter, no model hub.

    Temporary files of libraries go to `scratch`, where the network's own files are, and vanish with them.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    caches = {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": str(scratch / "torchinductor")}
    return passed_on | ONE_THREAD | caches | {"HF_HUB_OFFLINE": "1"}


def _run_module(
    module: str, arguments: Sequence[str], log: str, cwd: str, environment: Mapping[str, str], _held: Connection
) -> None:
    """In the new process: become `python -m module arguments`, in a session of its own, with its output in the log.

    The pipe is held, and not used, until the process ends.
    """
    os.setsid()  # Ctrl-C is for the starter, which ends the others in order
    setproctitle(" ".join([module, *arguments]))  # which has to come before the environment changes
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    tempfile.tempdir = None
    threading.Thread(target=_end_with_starter, daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with_starter() -> None:
    """Wait until the starter is gone, however it ended, and end this process and its children as `stop` would."""
    starter = multiprocessing.parent_process()
    if starter is not None:
        starter.join()
        os.killpg(0, signal.SIGTERM)
