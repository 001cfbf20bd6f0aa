"""Processes of one command. One that ends is started again."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import SpawnProcess

from covey.errors import OperatorError
from covey.runtime.cycle import stop_signals, wait_or_stop
from covey.runtime.log import get_logger

LOOK_S = 0.5
"""Seconds between two looks at whether a process has ended."""
EARLY_S, MOST_EARLY = 30.0, 5
"""A process that ends within so many seconds of its start has ended early. After so many in succession all end."""
STOP_S = 15.0
"""Maximum time in seconds that the processes have to finish."""


class ChildProcesses:
    """Example: `await ChildProcesses([serve, serve], name="server").run(stop)`."""

    def __init__(self, runs: Sequence[Callable[[], None]], *, name: str) -> None:
        """Each process calls one of `runs`, which can be pickled. It returns after SIGTERM, and when
        its parent process has ended. `name` is that of the processes in messages.
        """
        self._runs, self._name = runs, name
        self._spawning = multiprocessing.get_context("spawn")  # A fork would share connections and threads.
        self.running: dict[int, SpawnProcess] = {}
        """Processes by the index of what they run."""
        self._started: dict[int, float] = {}
        self._early = 0
        """Number of processes that have ended early, in succession."""

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the processes running until `stop` is set.

        Raises OperatorError("processes_end") if they end as soon as they are started.
        """
        try:
            while not stop.is_set():
                self._start_missing()
                await wait_or_stop(stop, LOOK_S)
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
            process = self.running.get(index)
            if process is not None and process.is_alive():
                continue
            if process is not None:
                self._note_end(index, process)
            process = self._spawning.Process(target=run)
            process.start()
            self.running[index], self._started[index] = process, time.monotonic()

    def _note_end(self, index: int, process: SpawnProcess) -> None:
        is_early = time.monotonic() - self._started[index] < EARLY_S
        self._early = self._early + 1 if is_early else 0
        if self._early >= MOST_EARLY:
            message = f"{self._early} {self._name} processes ended as soon as they started, with {process.exitcode}"
            raise OperatorError("processes_end", message, fix="Read what they have logged before")
        get_logger().error("a process ended and is started again", process=self._name, exit_status=process.exitcode)

    def _end(self) -> None:
        for process in self.running.values():
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in self.running.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def call_when_orphaned(callback: Callable[[], None]) -> None:
    """Wait in a thread until the process that started this one has ended, and then call `callback`."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        callback()
