"""Sends parts of files over a connection without copying them through this process.

`GuardedProtocol` offers this to its application as an extension of ASGI: `scope["extensions"][SEND_FILE]` is a function
that sends a `FilePart` as the rest of a response's body. Requests, headers and limits remain those of the server.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

SEND_FILE = "covey.send_file"
"""Name of the extension in the scope of a request. Its value is a `SendFile`."""
_PROBED_BYTES = 1 << 20
"""Distance in bytes of the places where a file is probed for whether it is in memory. The kernel reads ahead."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of an open file. Example: FilePart(descriptor, 4096, 4194304)."""

    descriptor: int
    """Descriptor of the file. The sender does not close it."""
    offset: int
    """Position of the first byte in the file."""
    size: int
    """Number of bytes, at least 1."""


SendFile = Callable[[FilePart], Awaitable[bool]]
"""Sends a part, which must be the rest of the body. Returns False if the peer has gone. Raises OSError if the file
cannot be read or is shorter, after closing the connection.
"""


class FileSender:
    """Sends files to the peer of one connection, one at a time. All methods must be called in the event loop."""

    def __init__(self, transport: asyncio.Transport, *, on_sent: Callable[[int], None]) -> None:
        """`on_sent` receives the number of bytes that the kernel has just taken."""
        self._transport, self._on_sent = transport, on_sent
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] | None = None
        """Future of the bytes that are being sent. None if the peer is not expected to read."""
        self._is_over = False

    @property
    def is_waiting(self) -> bool:
        """Whether a file can only be continued once the peer reads."""
        return self._done is not None

    def close(self) -> None:
        """End what is being sent, because the connection has ended."""
        self._is_over, self._on_sent = True, _ignore
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def send(self, part: FilePart) -> bool:
        """Send a part of a file as `SendFile` says. Everything written to the transport must have been sent."""
        if self._is_over or self._transport.is_closing():
            return False
        # The event loop watches the transport's own descriptor already. This one also stays valid if that is closed.
        connection, is_sent = os.dup(self._transport.get_extra_info("socket").fileno()), False
        try:
            if not _is_in_memory(part):  # The disk may delay this client, but no other one.
                await asyncio.to_thread(os.pread, part.descriptor, part.size, part.offset)
            if not self._is_over:
                await self._send(connection, part)
            is_sent = not self._is_over
        except ConnectionError:
            pass  # The peer has gone.
        finally:
            os.close(connection)
            if not is_sent:  # The peer must not take a part for the whole.
                self._transport.abort()
        return is_sent

    async def _send(self, connection: int, part: FilePart) -> None:
        """Send as fast as the peer reads. Returns early if the connection ends."""
        self._done = done = self._loop.create_future()
        offset, end = part.offset, part.offset + part.size

        def proceed() -> None:
            nonlocal offset
            if done.done():
                return
            try:
                sent = os.sendfile(connection, part.descriptor, offset, end - offset)
                if not sent:
                    raise OSError(f"the file ends at byte {offset}, before byte {end}")
            except BlockingIOError:
                return
            except OSError as error:
                done.set_exception(error)
                return
            self._on_sent(sent)
            offset += sent
            if offset == end:
                done.set_result(None)

        self._loop.add_writer(connection, proceed)
        try:
            await done
        finally:
            self._loop.remove_writer(connection)
            self._done = None


def _ignore(size: int) -> None:
    """Count nothing."""


def _is_in_memory(part: FilePart) -> bool:
    """Return whether a part of a file can be read without waiting for the disk, by the bytes where it is probed.

    True if the kernel cannot tell.
    """
    try:
        for offset in range(part.offset + part.size - 1, part.offset - 1, -_PROBED_BYTES):
            os.preadv(part.descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # A file system in memory does not support this.
        pass
    return True
