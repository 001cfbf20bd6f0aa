"""Several processes that serve on one port. One that ends is started again."""

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Callable
from multiprocessing.context import SpawnProcess

from covey.errors import OperatorError
from covey.runtime.cycle import wait_or_stop
from covey.runtime.http import listen
from covey.runtime.log import get_logger

LOOK_S = 0.5
"""Seconds between two looks at whether a process has ended."""
EARLY_S, MOST_EARLY = 30.0, 5
"""A process that ends within so many seconds of its start has ended early. After so many in succession all end."""
STOP_S = 15.0
"""Maximum time in seconds that the processes have to finish."""
FREE_S = 5.0
"""Maximum time in seconds to wait until the port is free."""


class HttpProcesses:
    """Example: `await HttpProcesses(serve_api, host="127.0.0.1", port=8000, count=4).run(stop)`."""

    def __init__(self, serve: Callable[[socket.socket], None], *, host: str, port: int, count: int) -> None:
        """`serve` is what each process runs, with a listening socket that all share. It returns after SIGTERM, and once
        `call_when_orphaned` tells that this process is gone.
        """
        self._serve, self._host, self._port, self._count = serve, host, port, count
        self._spawning = multiprocessing.get_context("spawn")  # A fork would share connections and threads.
        self._running: dict[int, SpawnProcess] = {}
        self._started: dict[int, float] = {}
        self._early = 0
        """Number of processes that have ended early, in succession."""

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the processes running until `stop` is set.

        Raises OperatorError "address_in_use", or "servers_end" if they end as soon as they are started.
        """
        with await self._listen(stop) as listener:
            try:
                while not stop.is_set():
                    self._start_missing(listener)
                    await wait_or_stop(stop, LOOK_S)
            finally:
                await asyncio.to_thread(self._end)

    async def _listen(self, stop: asyncio.Event) -> socket.socket:
        """Bind the port. The processes of a parent that was killed may keep it for a moment."""
        deadline = time.monotonic() + FREE_S
        while True:
            try:
                return listen(self._host, self._port)
            except OperatorError:
                if time.monotonic() > deadline or await wait_or_stop(stop, LOOK_S):
                    raise

    def _start_missing(self, listener: socket.socket) -> None:
        for number in range(self._count):
            process = self._running.get(number)
            if process is not None and process.is_alive():
                continue
            if process is not None:
                self._note_end(number, process)
            process = self._spawning.Process(target=self._serve, args=(listener,))
            process.start()
            self._running[number], self._started[number] = process, time.monotonic()

    def _note_end(self, number: int, process: SpawnProcess) -> None:
        is_early = time.monotonic() - self._started[number] < EARLY_S
        self._early = self._early + 1 if is_early else 0
        if self._early >= MOST_EARLY:
            message = f"{self._early} server processes ended as soon as they were started, with {process.exitcode}"
            raise OperatorError("servers_end", message, fix="Read what they have logged before")
        get_logger().error("a server process ended and is started again", exit_status=process.exitcode)

    def _end(self) -> None:
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in self._running.values():
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
