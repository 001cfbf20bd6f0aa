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

    async def run(self, stop: asyncio.Event, *, on_bound: Callable[[], None] = lambda: None) -> None:
        """Keep the processes running until `stop` is set. Raises OperatorError "address_in_use"."""
        with await self._listen(stop) as listener:
            on_bound()
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
                get_logger().error("a server process ended and is started again", exit_status=process.exitcode)
            process = self._spawning.Process(target=self._serve, args=(listener,))
            process.start()
            self._running[number] = process

    def _end(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.join(STOP_S)
            if process.is_alive():
                process.kill()
                process.join()


def call_when_orphaned(callback: Callable[[], None]) -> None:
    """Wait in a thread until the process that started this one has ended, and then call `callback`."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        callback()
