"""Several processes that serve on one port. One that ends is started again."""

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial

from covey.errors import OperatorError
from covey.runtime.child_processes import LOOK_SECONDS, ChildProcesses
from covey.runtime.cycle import wait_or_stop
from covey.runtime.http import listen

FREE_SECONDS = 5.0
"""Maximum time in seconds to wait until the port is free."""


class HttpProcesses:
    """Example: `await HttpProcesses(serve_api, host="127.0.0.1", port=8000, count=4).run(stop)`."""

    def __init__(self, serve: Callable[[int, socket.socket], None], *, host: str, port: int, count: int) -> None:
        """`serve` is what each process runs, as `ChildProcesses` says, with its number from 0 and a listening socket
        that all share.
        """
        self._serve, self._host, self._port, self._count = serve, host, port, count

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the processes running until `stop` is set.

        Raises OperatorError("address_in_use"), and the errors of `ChildProcesses.run`.
        """
        with await self._listen(stop) as listener:
            runs = [partial(self._serve, number, listener) for number in range(self._count)]
            await ChildProcesses(runs, name="server").run(stop)

    async def _listen(self, stop: asyncio.Event) -> socket.socket:
        """Bind the port. The processes of a parent that was killed may keep it for a moment."""
        deadline = time.monotonic() + FREE_SECONDS
        while True:
            try:
                return listen(self._host, self._port)
            except OperatorError:
                if time.monotonic() > deadline or await wait_or_stop(stop, LOOK_SECONDS):
                    raise
