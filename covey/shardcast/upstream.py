"""Blocking HTTP requests to an origin or another relay, for the threads of a relay.

Every request has a deadline, which `abort_overdue` enforces. A peer that sends single bytes therefore cannot hold a
thread. An upstream that does not answer is not asked for a moment.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from covey.errors import OperatorError, TransientError
from covey.runtime.urls import hide_secrets, is_plain_url
from covey.shardcast.source_connection import Connection, DeliveryError, LackingError, SilentError, UnchangedError

_SMOOTHING = 0.2
_LEAST_RATE, _FIRST_RATE = 15_000.0, 1_000_000.0
"""Minimum rate in bytes/s that a deadline assumes, and the assumed rate before the first measurement."""
_PATIENCE = 8.0
"""Factor by which a request may take longer than the measured rate suggests."""
_UNREACHABLE, _PAUSE_SECONDS = 3, 1.0
"""Number of consecutive requests without an answer after which requests pause, and the pause in seconds."""
_FORGIVEN_AFTER_SECONDS = 60.0
"""Time in seconds since the last failure after which an answer clears the failures of an upstream."""
_MEASURED_BYTES = 1 << 16
"""Minimum size in bytes of an answer that measures the rate. A smaller one measures the latency."""


@dataclass(frozen=True, slots=True)
class UpstreamReply:
    """Answer of an upstream. Example: UpstreamReply(200, memoryview(b"..."), '"5f..."')."""

    status: int
    """HTTP status: 200, 304 or 404."""
    body: memoryview
    """Body of the answer. Empty unless the status is 200."""
    etag: str | None


class Upstream:
    """Connections to one server, which are kept open. Methods can be called by several threads."""

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
                fix="Pass a URL such as http://host:port",
            )
        self.url = hide_secrets(url.rstrip("/"))
        """URL for messages, without secrets."""
        self.rate = _FIRST_RATE
        """Moving average of the rate of one connection in bytes/s."""
        self.failures = 0
        """Number of failures since the last correct bytes. An answer after a minute without failures also resets it."""
        self.received_bytes, self.failed_requests = 0, 0
        """Number of received bytes and number of failed requests since the start."""
        self._full_url, self._stall_s, self._connect_s, self._base_s = url, stall_s, connect_s, base_s
        self._clock = clock
        self._idle: list[Connection] = []
        self._deadlines: dict[Connection, float] = {}
        """Deadlines of the requests in flight."""
        self._lock = threading.Lock()
        self._is_closed = False
        self._failed_at = float("-inf")
        self._unreachable, self._unreachable_at = 0, float("-inf")
        """Number of consecutive requests without an answer, and the time of the last one."""

    def request(self, path: str, target: memoryview | int, *, etag: str | None = None) -> UpstreamReply:
        """Return the answer to a GET request. `target` is a buffer for the body, or the maximum size of the body in
        bytes.

        With an ETag, status 304 means that the document has not changed. Raises TransientError("upstream_unreachable")
        if the answer is missing, late or incomplete. Raises TransientError("upstream_failed") if the answer is too
        large or has another status.
        """
        limit = target if isinstance(target, int) else len(target)
        connection, begun = self._take(limit), self._clock()
        try:
            reply = self._exchange(connection, path, target, etag)
        except SilentError as error:
            self._unreachable, self._unreachable_at = self._unreachable + 1, self._clock()
            self.fail()
            raise TransientError(
                "upstream_unreachable", f"{self.url}{path} was not received: the upstream {error}"
            ) from error
        except DeliveryError as error:
            self._unreachable = 0
            self.fail()
            raise TransientError(
                "upstream_failed", f"{self.url}{path} was not received: the upstream {error}"
            ) from error
        finally:
            self._learn(connection.received, self._clock() - begun)
            self._put_back(connection)
        self._unreachable = 0
        if self._clock() - self._failed_at > _FORGIVEN_AFTER_SECONDS:
            self.failures = 0
        return reply

    @property
    def is_paused(self) -> bool:
        """Whether the upstream has just failed to answer several times in a row, so that no request should be sent."""
        return self._unreachable >= _UNREACHABLE and self._clock() - self._unreachable_at < _PAUSE_SECONDS

    def fail(self) -> None:
        """Count a failure."""
        with self._lock:
            self.failures, self._failed_at = self.failures + 1, self._clock()
            self.failed_requests += 1

    def succeed(self) -> None:
        """Record that the received bytes were correct. Not called for a head, whose correctness cannot be verified."""
        self.failures = 0

    def abort_overdue(self) -> None:
        """Abort the requests whose deadline has passed. Must be called about once per second."""
        now = self._clock()
        with self._lock:
            for connection, deadline in self._deadlines.items():
                if now > deadline:
                    connection.abort()

    def close(self) -> None:
        """Close all connections and abort the requests in flight."""
        with self._lock:
            self._is_closed = True
            for connection in self._deadlines:
                connection.abort()
            while self._idle:
                self._idle.pop().close()

    def _take(self, size: int) -> Connection:
        """Return a connection for an answer of at most `size` bytes. The deadline of the request starts now."""
        allowed_s = self._base_s + _PATIENCE * size / max(self.rate, _LEAST_RATE)
        with self._lock:
            if self._is_closed:
                raise TransientError("upstream_unreachable", "the relay is shutting down")
            if self._idle:
                connection = self._idle.pop()
            else:
                connection = Connection(self._full_url, connect_s=self._connect_s, silence_s=self._stall_s)
            self._deadlines[connection] = self._clock() + allowed_s
            return connection

    def _put_back(self, connection: Connection) -> None:
        with self._lock:
            del self._deadlines[connection]
            self.received_bytes += connection.received
            if self._is_closed:
                connection.close()
            else:
                self._idle.append(connection)

    def _exchange(self, connection: Connection, path: str, target: memoryview | int, etag: str | None) -> UpstreamReply:
        try:
            if isinstance(target, int):
                body = connection.get(path, target, etag=etag)
            else:
                body = connection.get_within(path, target, etag=etag)
            return UpstreamReply(200, body, connection.etag)
        except UnchangedError:
            return UpstreamReply(304, memoryview(b""), connection.etag)
        except LackingError:
            return UpstreamReply(404, memoryview(b""), connection.etag)

    def _learn(self, size: int, seconds: float) -> None:
        if size >= _MEASURED_BYTES:
            self.rate += _SMOOTHING * (size / max(seconds, 1e-6) - self.rate)
