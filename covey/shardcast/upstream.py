"""Blocking HTTP requests to an origin or another relay, for threads of a relay.

The body is received into a buffer of the caller: no copies, no event loop. Redirects are not followed, and the size is
checked before a byte of the body is read. Every request has a deadline, which `abort_overdue` enforces, so a peer
that sends a byte now and then cannot hold a thread.
"""

import http.client
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from covey.errors import OperatorError, TransientError
from covey.runtime.urls import hide_secrets, is_plain_url

_SMOOTHING = 0.2
_LEAST_RATE, _FIRST_RATE = 15_000.0, 1_000_000.0
"""Bytes/s that a deadline assumes at least, and before anything was measured."""
_PATIENCE = 8.0
"""A request may take this many times as long as the measured rate suggests."""
_UNREACHABLE, _PAUSE_S = 3, 1.0
"""After this many requests without an answer, none is sent for this many seconds."""
_DRAINED = 1 << 16
"""Maximum size of an error's body that is read, so that its connection can be used again."""


@dataclass(frozen=True, slots=True)
class UpstreamReply:
    """An answer of an upstream. Example: UpstreamReply(200, memoryview(b"..."), '"5f..."')."""

    status: int
    body: memoryview
    """Empty unless the status is 200."""
    etag: str | None


class Upstream:
    """One server, with connections that are kept open. Methods can be called by several threads."""

    def __init__(
        self,
        url: str,
        *,
        stall_s: float = 5.0,
        connect_s: float = 3.0,
        base_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A request fails after `stall_s` seconds without a byte. `base_s` is the part of its deadline that does not
        depend on its size. Raises OperatorError("bad_upstream") if the URL is not plain http or https.
        """
        if not is_plain_url(url):
            raise OperatorError(
                "bad_upstream",
                f"{hide_secrets(url)} is not a URL of an origin",
                fix="Pass one such as http://host:port",
            )
        parts = urlsplit(url.rstrip("/"))
        self.url = hide_secrets(url.rstrip("/"))
        """URL for messages."""
        self.rate = _FIRST_RATE
        """Moving average of the bytes/s of one connection."""
        self.failures = 0
        """Number of failures since the last success."""
        self._prefix, self._stall_s, self._connect_s, self._base_s = parts.path, stall_s, connect_s, base_s
        self._host, self._port = cast(str, parts.hostname), parts.port
        self._connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._clock = clock
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._deadlines: dict[http.client.HTTPConnection, float] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._unreachable, self._unreachable_at = 0, float("-inf")
        """Number of consecutive requests without an answer, and the time of the last one."""

    def request(self, path: str, buffer: memoryview, *, etag: str | None = None) -> UpstreamReply:
        """Return the answer to a GET request. The body is a part of `buffer`, whose size is the maximum.

        With an ETag, status 304 means that the document has not changed.
        Raises TransientError("upstream_unreachable") if there is no answer, or one that is late, incomplete or too
        large.
        """
        headers = {"accept-encoding": "identity"} | ({"if-none-match": etag} if etag else {})
        begun = self._clock()
        try:
            reply = self._try_twice(path, headers, buffer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = str(error) or type(error).__name__
            self.fail()
            self._unreachable, self._unreachable_at = self._unreachable + 1, self._clock()
            raise TransientError("upstream_unreachable", f"{self.url}{path} was not received: {reason}") from error
        if reply.status == 200:
            self._learn(len(reply.body), self._clock() - begun)
        self.failures, self._unreachable = 0, 0
        return reply

    @property
    def is_paused(self) -> bool:
        """Whether it did not answer several times in a row just now, so that asking again would only hold threads."""
        return self._unreachable >= _UNREACHABLE and self._clock() - self._unreachable_at < _PAUSE_S

    def fail(self) -> None:
        """Count a failure."""
        self.failures += 1

    def abort_overdue(self) -> None:
        """End the requests whose deadline has passed. Must be called about once per second."""
        now = self._clock()
        with self._lock:
            overdue = [connection for connection, deadline in self._deadlines.items() if now > deadline]
        for connection in overdue:
            _shut_down(connection)

    def close(self) -> None:
        """Close all connections, including those in use."""
        self._is_closed = True
        with self._lock:
            for connection in self._deadlines:
                _shut_down(connection)
        while self._idle:
            self._idle.pop().close()

    def _try_twice(self, path: str, headers: Mapping[str, str], buffer: memoryview) -> UpstreamReply:
        """Repeat the request on a new connection if the server has closed an idle one."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._exchange(self._open(), path, headers, buffer)
        try:
            return self._exchange(connection, path, headers, buffer)
        except (ConnectionError, http.client.RemoteDisconnected):
            return self._exchange(self._open(), path, headers, buffer)

    def _open(self) -> http.client.HTTPConnection:
        if self._is_closed:
            raise ConnectionAbortedError("the relay is ending")
        connection = self._connection(self._host, self._port, timeout=self._connect_s)
        connection.connect()
        connection.sock.settimeout(self._stall_s)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _exchange(
        self, connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str], buffer: memoryview
    ) -> UpstreamReply:
        allowed_s = self._base_s + _PATIENCE * len(buffer) / max(self.rate, _LEAST_RATE)
        with self._lock:
            self._deadlines[connection] = self._clock() + allowed_s
        is_reusable = False
        try:
            connection.request("GET", self._prefix + path, headers=dict(headers))
            response = connection.getresponse()
            etag = response.getheader("etag")
            if response.status == 200:
                body = self._receive(response, buffer)
            else:
                body = buffer[:0]
                response.read(_DRAINED)
            is_reusable = not response.will_close and (response.status == 200 or response.isclosed())
            response.close()
            return UpstreamReply(response.status, body, etag)
        finally:
            with self._lock:
                del self._deadlines[connection]
            if is_reusable and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.close()

    def _receive(self, response: http.client.HTTPResponse, buffer: memoryview) -> memoryview:
        size = response.length
        if size is None:
            raise ValueError("the answer has no content-length")
        if size > len(buffer):
            raise ValueError(f"the answer has {size} bytes, which exceeds the maximum of {len(buffer)}")
        file, received, begun = response.fp, 0, self._clock()
        while received < size:
            count = file.readinto1(buffer[received:size])
            if not count:
                self._learn(received, self._clock() - begun)
                raise ValueError(f"the answer ended after {received} of {size} bytes")
            received += count
        return buffer[:size]

    def _learn(self, size: int, seconds: float) -> None:
        if size >= _DRAINED:
            self.rate += _SMOOTHING * (size / max(seconds, 1e-6) - self.rate)


def _shut_down(connection: http.client.HTTPConnection) -> None:
    """End a connection that another thread reads from. Its read returns at once."""
    try:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # It has ended already.
