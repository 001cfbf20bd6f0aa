"""The processes of a network on one machine: started in their own sessions, watched, and stopped in every case.

They are forked from one server that has imported the heavy libraries once, because importing torch and transformers in
a dozen processes takes much time and memory (decision 029). CUDA does not work after a fork of a process that uses it,
so on a machine with an accelerator each process starts as a new interpreter.

The server reports how its children end. A child that outlives the server is watched through its own pipe.
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
"""Timeout in seconds for a process to end after SIGKILL."""
STOP_SECONDS = (30.0, 60.0, 10.0, 10.0)
"""Timeout in seconds of each phase of `Processes.stop`, after which its remaining processes are killed."""
SAY_SECONDS = 5.0
"""Seconds after which the user is shown the remaining processes of a phase."""
STOP_PHASES = {"trainer": 1, "coordinator": 2, "origin": 2, "relay": 2, "devnet": 3}
"""Phase in which a command is stopped, by its first word. All other commands are stopped in phase 0.

A process is stopped before those that it needs. Workers submit their last work, and the trainer publishes its last
policy, while the coordinator still runs. The coordinator sends its last transactions while the chain still runs.
"""
LOST = 255
"""Exit status that multiprocessing reports for a child whose server has ended."""
PRELOAD = "covey.local.preload"
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "VIRTUAL_ENV")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment variables that limit each process to one thread.

With more threads, several busy processes slow down a small machine.
"""
ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files of NVIDIA's and AMD's drivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One process of the network. Example: name="worker-1"."""

    name: str
    process: BaseProcess
    log: Path
    begun: int
    """Size of the log in bytes when the process was started."""
    phase: int
    """Phase in which the process is stopped; see STOP_PHASES."""
    life: Connection
    """Read end of a pipe. The process keeps the write end open until it ends."""

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the process's session and process group."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit status, or the negative number of the signal that ended the process. None while it runs."""
        code = self.process.exitcode
        return None if code == LOST and not self.life.poll() else code

    def wait(self, seconds: float) -> int:
        """Wait until the process ends, and return its exit status. Raises TimeoutError after `seconds`."""
        deadline = time.monotonic() + seconds
        self.process.join(seconds)
        if self.process.exitcode == LOST:
            self.life.poll(max(0.0, deadline - time.monotonic()))
        if self.exit_code is None:
            raise TimeoutError(f"{self.name} is still running after {seconds} s")
        return self.exit_code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process's whole session, including its child processes."""
        if self.exit_code is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # it has just been started and does not lead a session yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)


class Processes:
    """Starts `covey ...` commands and stops them all.

    `logs` is the folder of their output, `cwd` their working directory, and `environment` their whole environment. With
    `is_alone` no fork server is used, because importing everything would cost more than it saves.
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
        """Start the server's imports in the background. `start` waits for them."""
        if self._is_forking:
            before = dict(os.environ)
            # Libraries read the environment when they are imported. TMPDIR keeps the value of this process, so that the
            # server's own socket is among its files.
            os.environ.update(self._environment | {"TMPDIR": tempfile.gettempdir()})
            try:
                forkserver.ensure_running()
            except OSError as error:  # a socket's path has at most 107 bytes
                folder = tempfile.gettempdir()
                raise OperatorError(
                    "no_fork_server",
                    f"processes cannot be started, because the temporary folder {folder} is not usable: {error}",
                    fix="Set TMPDIR to /tmp",
                ) from error
            finally:
                os.environ.clear()
                os.environ.update(before)

    def start(self, name: str, *arguments: str, module: str = "covey") -> Running:
        """Run `covey <arguments>`, or a different module with these arguments. Its output goes to a log file."""
        log = self._logs / f"{name}.log"
        self._logs.mkdir(parents=True, exist_ok=True)  # here, because someone may delete it while others run
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
        """Kill a process, as in a crash: no signal handler runs."""
        running = self.get(name)
        running.signal(signal.SIGKILL)
        running.wait(KILL_SECONDS)

    def rotate_logs(self) -> str | None:
        """Limit the size of all logs. Return why a log could not be rotated. None if all could."""
        trouble = None
        for running in self.running:
            try:
                rotate(running.log)
            except OSError as error:
                trouble = f"the log {running.log} cannot be rotated: {error.strerror}"
        return trouble

    def require_alive(self, *, ended: tuple[str, ...] = ()) -> None:
        """Raise OperatorError("process_died") if a process has died. Processes in `ended` may have ended with 0."""
        for running in self.running:
            code = running.exit_code
            if code is None or (code == 0 and running.name in ended):
                continue
            tail = "\n".join(read_last_lines(running.log, 5))
            raise OperatorError(
                "process_died",
                f"{running.name} ended with exit code {code}; its log ends with:\n{tail}",
                fix=f"Read {running.log}",
            )

    def stop(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Ask all processes to end, in the order of STOP_PHASES, and kill those that exceed their phase's timeout.

        `say` is called with a line about slow processes.
        """
        for phase, seconds in enumerate(STOP_SECONDS):
            _end([running for running in self.running if running.phase == phase], seconds, say)


def _end(ending: Sequence[Running], seconds: float, say: Callable[[str], None]) -> None:
    """Ask these processes to end, and kill those that are still running after `seconds`."""
    started = time.monotonic()
    for running in ending:
        running.signal(signal.SIGTERM)
    for limit in sorted({min(SAY_SECONDS, seconds), seconds}):
        for running in ending:
            with contextlib.suppress(TimeoutError):
                running.wait(max(0.0, started + limit - time.monotonic()))
        late = ", ".join(running.name for running in ending if running.exit_code is None)
        if late and limit < seconds:
            say(f"waiting at most {seconds - limit:.0f} s more for {late} to stop")
        elif late:
            say(f"killing {late}, which did not stop within {seconds:.0f} s")
    for running in ending:
        running.signal(signal.SIGKILL)
    for running in ending:
        running.wait(KILL_SECONDS)


def build_environment(scratch: Path) -> dict[str, str]:
    """Return the environment for a demonstration network, without the user's secrets and without a model hub.

    Temporary files of libraries go to `scratch`, the folder of the network's own files, and are deleted with them.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    caches = {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": str(scratch / "torchinductor")}
    return passed_on | ONE_THREAD | caches | {"HF_HUB_OFFLINE": "1"}


def _run_module(
    module: str, arguments: Sequence[str], log: str, cwd: str, environment: Mapping[str, str], _held: Connection
) -> None:
    """Run `python -m module arguments` in the new process, in its own session and with its output in the log.

    The pipe stays open, but unused, until the process ends.
    """
    os.setsid()  # Ctrl-C must reach only the starter, which stops the others in order
    setproctitle(" ".join([module, *arguments]))  # must come before the environment changes
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
    """Wait until the parent has ended for any reason. Then end this process and its children as `stop` would."""
    starter = multiprocessing.parent_process()
    if starter is not None:
        starter.join()
        os.killpg(0, signal.SIGTERM)
