"""HTTP session whose answers have a limited size and arrive within a deadline.

The timeouts of requests count from byte to byte, and it reads a body of any length. A node could hold a caller forever
by sending one byte at a time, or fill the memory with one answer.
"""

import time
from contextlib import ExitStack
from http.client import HTTPResponse
from io import BufferedReader, RawIOBase
from socket import socket
from typing import Any

from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from urllib3 import Timeout

from covey.errors import TransientError
from covey.runtime.urls import show_host

MAX_REDIRECTS = 1
"""Number of redirects that a request follows. Each one has the deadline of a request."""
CONNECTIONS = 64
"""Number of idle connections that are kept. Threads share a session, and each request uses one connection."""
_CHUNK_BYTES = 2**16


class AnswerTooLargeError(ValueError):
    """An HTTP answer is larger than the session accepts."""


class BoundedSession(Session):
    """Session that reads whole answers of at most `max_bytes`, within the seconds that a request's `timeout` names.

    The timeout covers connecting, the headers and the body together. A late answer raises an error of requests, and one
    of more than `max_bytes`, compressed or not, raises AnswerTooLargeError.

    Example: `BoundedSession(max_bytes=2**20).get("http://127.0.0.1:8545", timeout=10.0)`.
    """

    def __init__(self, *, max_bytes: int) -> None:
        super().__init__()
        self.max_redirects = MAX_REDIRECTS
        for scheme in ("http://", "https://"):
            self.mount(scheme, _BoundedAdapter(max_bytes))


def post_json(url: str, body: bytes, *, seconds: float) -> None:
    """Send JSON to a URL, whose answer does not matter. Raises TransientError("not_delivered")."""
    with BoundedSession(max_bytes=_CHUNK_BYTES) as session:
        try:
            headers = {"Content-Type": "application/json"}
            session.post(url, data=body, headers=headers, timeout=seconds).raise_for_status()
        except (RequestException, AnswerTooLargeError) as error:
            raise TransientError("not_delivered", f"{show_host(url)}: {type(error).__name__}") from error


class _BoundedAdapter(HTTPAdapter):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(pool_maxsize=CONNECTIONS)
        self._max_bytes = max_bytes

    def send(self, request: PreparedRequest, *args: Any, timeout: Any = None, **options: Any) -> Response:
        # A total makes urllib3 subtract the time to connect from the time to read.
        options["timeout"] = Timeout(total=timeout)
        response = super().send(request, *args, **options | {"stream": True})
        body = bytearray()
        with ExitStack() as failed:
            failed.callback(response.close)
            for chunk in response.iter_content(_CHUNK_BYTES):
                body += chunk
                if len(body) > self._max_bytes:
                    raise AnswerTooLargeError
            failed.pop_all()
        response._content = bytes(body)
        return response

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        """Return the pool of a host. Its connections read with a deadline, also through a proxy or TLS."""
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        if not issubclass(pool.ConnectionCls, _Timed):
            pool.ConnectionCls = type("TimedConnection", (_Timed, pool.ConnectionCls), {})
        return pool


class _TimedResponse(HTTPResponse):
    """Response whose headers and body together must arrive within the timeout that the socket has at the start."""

    def __init__(self, sock: socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = BufferedReader(_TimedReader(sock, self.fp.detach()))


class _TimedReader(RawIOBase):
    """Reader of a socket that raises TimeoutError at the end of the socket's timeout, however many bytes arrive."""

    def __init__(self, sock: socket, raw: RawIOBase) -> None:
        self._sock, self._raw = sock, raw
        timeout_s = sock.gettimeout()
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer is late")
            self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Timed:
    """Part of a connection class that makes its responses timed."""

    response_class = _TimedResponse
