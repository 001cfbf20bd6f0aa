"""Limits of what a peer's connection can cost a server: deadlines for the peer, and a cap on connections.

`GuardedProtocol` is uvicorn's protocol on httptools with `ConnectionLimits`. A peer that is late with headers, with a
body or with reading is disconnected. Time that the application takes, as in a long poll, does not count against the
peer. At the cap, the connection on which the server has waited longest for its peer is closed to make room for a new
one. `Gate` contains the connections of one server.
"""

import asyncio
import resource
import socket
import time
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from covey.runtime.file_sending import SEND_FILE, FilePart, FileSender
from covey.runtime.log import get_logger

ACCEPTED_AT_ONCE = 32
"""Maximum number of connections that asyncio accepts before it calls their protocols.

The number of connections can therefore exceed the cap by a few such batches.
"""
_OWN_DESCRIPTORS = 256 + 4 * ACCEPTED_AT_ONCE
"""Number of descriptors reserved for databases, the chain, downloads and connections accepted over the cap."""
_UNSENT_BYTES = 1 << 16
"""Maximum number of unsent bytes that the kernel buffers for one peer.

Without this limit the kernel buffers megabytes, which hides whether a slow peer still reads.
"""
_PARTS = 10
"""Number of parts in which connections are checked, so that ten thousand of them hold nobody up."""
_MANY = 1000
"""Number of connections above which only a part is searched for the one that has waited longest."""
_LOG_EVERY_SECONDS = 60.0
"""Minimum time in seconds between two warnings about too many connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Deadlines of a connection, and the maximum number of connections.

    Example: ConnectionLimits(headers_s=5, connections=500).
    """

    headers_s: float = 10.0
    """Seconds from the start of a connection, or the first byte of a later request, to the end of its headers."""
    headers_bytes: int = 1 << 16
    """Maximum size of a request's headers in bytes, including trailers."""
    progress_s: float = 20.0
    """Seconds within which a peer must send or receive `progress_bytes` of a body."""
    progress_bytes: int = 20_000
    """Minimum number of bytes that a peer must send or receive within `progress_s`. The defaults amount to 1 kB/s.
    Slow links are served, but a peer that sends a single byte now and then is not.
    """
    idle_s: int = 75
    """Seconds for which a connection stays open after a response."""
    connections: int = 8192
    """Maximum number of open connections. It is lower if the process cannot open enough descriptors."""
    descriptors: int = 2
    """Maximum number of descriptors that a connection takes: its socket, and what the application opens for a request.
    A server that sends files requires 3, because the socket has a second descriptor meanwhile.
    """


def compute_cap(limits: ConnectionLimits, descriptors: int) -> int:
    """Return the number of connections that a process with `descriptors` file descriptors can serve.

    Each connection takes up to `limits.descriptors`.
    """
    return max(1, min(limits.connections, (descriptors - _OWN_DESCRIPTORS) // limits.descriptors))


def raise_descriptor_limit(limits: ConnectionLimits) -> int:
    """Raise this process's descriptor limit to what `limits` requires, as far as the system allows.

    Returns the number of descriptors that the process can open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.descriptors * limits.connections + _OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


class Gate:
    """The open connections of one server, at most `cap`."""

    def __init__(self, limits: ConnectionLimits, cap: int) -> None:
        self.limits, self._cap = limits, cap
        self._connections: set[GuardedProtocol] = set()
        self._parts: tuple[set[GuardedProtocol], ...] = tuple(set() for _ in range(_PARTS))
        """The connections by the time of their checks. One timer checks all, and a part at a time."""
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._logged_at = float("-inf")

    def admit(self, connection: "GuardedProtocol") -> None:
        """Add a connection.

        Above the cap, abort the connection that has waited longest for its peer, or the new one if none is waiting. Of
        many, a tenth is searched.
        """
        self._connections.add(connection)
        min(self._parts, key=len).add(connection)
        if self._timer is None:
            self._schedule(connection.loop)
        if len(self._connections) <= self._cap:
            return
        # Of many connections a part is looked at, because a flood would make each look at all of them.
        some = self._parts[self._turn] if len(self._connections) > _MANY else self._connections
        waiting = (other for other in some if other is not connection and other.is_waiting)
        min(waiting, key=lambda other: other.expected_since, default=connection).transport.abort()
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_SECONDS:
            self._logged_at = now
            get_logger().warning("too many connections, closing one for each new one", connections=self._cap)

    def forget(self, connection: "GuardedProtocol") -> None:
        """Remove a connection that has ended."""
        self._connections.discard(connection)
        for part in self._parts:
            part.discard(connection)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        every = min(self.limits.headers_s, self.limits.progress_s) / 10
        self._timer = loop.call_later(every / _PARTS, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check one part of the connections."""
        self._timer = None
        if self._connections:
            self._schedule(loop)
        self._turn = (self._turn + 1) % _PARTS
        for connection in tuple(self._parts[self._turn]):
            connection.look()


class Debt(Enum):
    """The step that the server expects from a peer next."""

    HEADERS = auto()
    """Send the headers of a request."""
    BODY = auto()
    """Send the rest of a request's body."""
    READING = auto()
    """Read the response."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection, with deadlines for its peer."""

    def __init__(self, *args: Any, gate: Gate, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._gate, self._limits = gate, gate.limits
        self._missing: Debt | None = Debt.HEADERS
        """What has not arrived yet of the newest request: headers or body. None once the request is complete."""
        self._debt: Debt | None = Debt.HEADERS
        """The step expected from the peer at the last check. None if there was none."""
        self.expected_since = time.monotonic()
        """Time on the monotonic clock when the peer's next step was first expected, or when the peer last made enough
        progress.
        """
        self._moved = self._moved_before = 0
        """Bytes of request bodies received and of responses sent: now and at `expected_since`."""
        self._unsent = self._headers_bytes = 0
        self._files: FileSender | None = None
        """Sender of files. None before the connection is made."""

    @property
    def is_waiting(self) -> bool:
        """Whether it is the peer's turn: to send a request or the rest of one, or to read the response."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return not self.transport.is_closing() and (is_answered or self._find_debt() is not None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._gate.admit(self)
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._files = FileSender(transport, on_sent=self._count_moved)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, without references in a circle: a server collects its garbage rarely."""
        if self._files is not None:
            self._files.close()
        self._gate.forget(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves the timer after an error.
        self.timeout_keep_alive_task = None
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes.

        Reject a request whose headers are too large, because the parser keeps them in memory.
        """
        moved = self._moved
        super().data_received(data)
        if self._missing is None and self.cycle.response_complete:
            # A blank line, or the end of a body that was answered early, has cancelled uvicorn's keep-alive timeout.
            # From here on, the deadline for headers replaces it.
            self._missing, self._debt, self.expected_since = Debt.HEADERS, Debt.HEADERS, time.monotonic()
        if self._missing is None or self._moved > moved:
            self._headers_bytes = 0
            return
        self._headers_bytes += len(data)
        if self._headers_bytes > self._limits.headers_bytes and not self.transport.is_closing():
            self.send_400_response(f"The headers of the request exceed {self._limits.headers_bytes} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._missing = self._debt = Debt.HEADERS
        self.expected_since = time.monotonic()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._missing = Debt.BODY

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._moved += len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._missing = None

    def resume_writing(self) -> None:
        super().resume_writing()
        self._moved += self._limits.progress_bytes  # The peer has read a full buffer, which is enough progress.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, partial(self._run, app, cycle))

    async def _run(self, app: Any, cycle: RequestResponseCycle, scope: Any, receive: Any, send: Any) -> None:
        """Run the application with the extension that sends files, which ends with the request."""
        scope["extensions"] = {SEND_FILE: partial(self._send_file, cycle)}
        try:
            await app(scope, receive, send)
        finally:
            del scope["extensions"]  # It refers to the request, which refers to the scope.

    async def _send_file(self, cycle: RequestResponseCycle, part: FilePart) -> bool:
        """Send a part of a file as the rest of a response's body, as `SendFile` says."""
        assert self._files is not None
        await asyncio.sleep(0)  # The event loop sends the headers now, unless the peer does not read.
        if self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(high=0)
            await self.flow.drain()
            self.transport.set_write_buffer_limits()
        is_sent = False
        try:
            is_sent = await self._files.send(part)
        finally:
            cycle.disconnected |= not is_sent
        if is_sent:
            cycle.expected_content_length -= part.size
            await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})
        return is_sent

    def _count_moved(self, size: int) -> None:
        self._moved += size

    def _find_debt(self) -> Debt | None:
        """Return the step that is expected from the peer now. None if there is none."""
        if self.transport.get_write_buffer_size() or (self._files is not None and self._files.is_waiting):
            return Debt.READING
        return None if self.flow.read_paused else self._missing

    def look(self) -> None:
        """Abort the connection if the peer is overdue."""
        now, unsent = time.monotonic(), self.transport.get_write_buffer_size()
        self._moved, self._unsent = self._moved + max(0, self._unsent - unsent), unsent
        debt = self._find_debt()
        has_paid = debt is not Debt.HEADERS and self._moved - self._moved_before >= self._limits.progress_bytes
        if debt is not self._debt or has_paid:
            self._debt, self.expected_since, self._moved_before = debt, now, self._moved
        patience = self._limits.headers_s if debt is Debt.HEADERS else self._limits.progress_s
        if debt is not None and now - self.expected_since >= patience:
            self.transport.abort()  # close() would wait until the peer has read the whole response.
