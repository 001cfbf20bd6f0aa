"""Processes of one command. One that ends is started again, after a pause that grows while it ends early."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from covey.errors import CoveyError, OperatorError
from covey.runtime.cycle import stop_signals, wait_or_stop
from covey.runtime.log import get_logger

LOOK_SECONDS = 0.5
"""Seconds between two looks at whether a process has ended."""
STEADY_SECONDS = 30.0
"""Seconds after which the next pause of a process is the shortest again."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 10.0
"""Seconds until a process that has ended is started again, at first and at most. They double with each early end."""
STOP_SECONDS = 15.0
"""Maximum time in seconds that the processes have to finish."""


@dataclass(slots=True, kw_only=True)
class _Child:
    """A process, and the end of a pipe that receives the error that ended it."""

    process: SpawnProcess
    errors: Connection
    started_at: float
    restart_at: float | None = None
    """When it is started again, on the monotonic clock. None while it runs."""


class ChildProcesses:
    """Example: `await ChildProcesses([serve, serve], name="server").run(stop)`."""

    def __init__(self, runs: Sequence[Callable[[], None]], *, name: str) -> None:
        """Each process calls one of `runs`, which can be pickled. It returns after SIGTERM, and when
        its parent process has ended. `name` is that of the processes in messages.
        """
        self._runs, self._name = runs, name
        self._spawning = multiprocessing.get_context("spawn")  # A fork would share connections and threads.
        self._children: dict[int, _Child] = {}
        self._pauses = [FIRST_PAUSE_SECONDS] * len(runs)

    @property
    def running(self) -> dict[int, SpawnProcess]:
        """Newest process of each run, by the index of the run."""
        return {index: child.process for index, child in self._children.items()}

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the processes running until `stop` is set.

        One that is killed, has a defect or ends with a TransientError is started again. An OperatorError, which
        another start does not cure, ends all processes and is raised here.
        """
        try:
            while not stop.is_set():
                self._start_missing()
                await wait_or_stop(stop, LOOK_SECONDS)
        finally:
            await asyncio.to_thread(self._end)

    def run_until_signal(self) -> None:
        """Keep the processes running until SIGINT or SIGTERM. Raises the error of `run`."""

        async def run() -> None:
            stop = asyncio.Event()
            with stop_signals(stop):
                await self.run(stop)

        asyncio.run(run())

    def _start_missing(self) -> None:
        for index, run in enumerate(self._runs):
            child = self._children.get(index)
            if child is not None and child.restart_at is None and not child.process.is_alive():
                self._note_end(index, child)
            if child is None or (child.restart_at is not None and time.monotonic() >= child.restart_at):
                self._children[index] = self._start(run)

    def _start(self, run: Callable[[], None]) -> _Child:
        errors, sending = self._spawning.Pipe(duplex=False)
        process = self._spawning.Process(target=_run_child, args=(run, sending))
        process.start()
        sending.close()
        return _Child(process=process, errors=errors, started_at=time.monotonic())

    def _note_end(self, index: int, child: _Child) -> None:
        error = _receive_error(child.errors)
        if isinstance(error, OperatorError):
            raise error
        now = time.monotonic()
        pause = FIRST_PAUSE_SECONDS if now - child.started_at >= STEADY_SECONDS else self._pauses[index]
        self._pauses[index], child.restart_at = min(2 * pause, MAX_PAUSE_SECONDS), now + pause
        get_logger().error(
            "a process ended and is started again",
            process=self._name,
            exit_status=child.process.exitcode,
            error=None if error is None else str(error),
            pause_s=pause,
        )

    def _end(self) -> None:
        for child in self._children.values():
            child.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._children.values():
            child.process.join(max(0.0, deadline - time.monotonic()))
            if child.process.is_alive():
                child.process.kill()
                child.process.join()
            child.errors.close()


def _run_child(run: Callable[[], None], errors: Connection) -> None:
    """Call `run` in a new process. An error of Covey goes to the parent, which reports it."""
    try:
        run()
    except CoveyError as error:
        errors.send((error.code, error.message, error.fix if isinstance(error, OperatorError) else None))
        raise SystemExit(1) from None


def _receive_error(errors: Connection) -> CoveyError | None:
    """Return the error that has ended a process. None if a signal or a defect has ended it."""
    with errors:
        try:
            code, message, fix = errors.recv()
        except EOFError:
            return None
    if fix is None:
        return CoveyError(code, message)
    return OperatorError(code, message.removesuffix(f". {fix}"), fix=fix)


def call_when_orphaned(callback: Callable[[], None]) -> None:
    """Wait in a thread until the process that started this one has ended, and then call `callback`."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        callback()
