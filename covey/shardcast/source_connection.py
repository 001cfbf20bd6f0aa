"""HTTP connection to a relay or origin, for one thread. Bodies are read straight into the caller's memory.

A download moves gigabytes per second, so the standard library's blocking client is used. It adds no copy, and a thread
that waits for the network costs nothing. Another thread may end a request with `abort`.
"""

import http.client
import math
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

CONNECT_SECONDS = 3.0
"""Timeout in seconds of a connection attempt."""
_SILENCE_SECONDS = 30.0
"""Timeout in seconds for the next byte. The downloader's own deadlines are usually far shorter."""
_LONGEST_WAIT_SECONDS = 30.0
_DRAINED = 1 << 16
"""Maximum size in bytes of an error body that is read to its end, so that the connection can be reused."""
_CHUNK = 1 << 18
"""Maximum number of bytes that one call receives."""
_BROKEN = (OSError, http.client.HTTPException, ValueError)
"""Errors of a broken connection, or of a peer that does not speak HTTP."""


class DeliveryError(Exception):
    """A source did not deliver the requested resource. The text says what it did instead."""


class LackingError(DeliveryError):
    """The source answered that it does not have the resource."""


class UnchangedError(DeliveryError):
    """The source answered that the resource still has the ETag in the request."""


class BusyError(DeliveryError):
    """The source answered that this client sends too many requests and must wait for `wait_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        super().__init__("is too busy")
        self.wait_s = wait_s


class SilentError(DeliveryError):
    """The source could not be reached, did not answer, or stopped in the middle of a body."""


class Connection:
    """Connection that opens at the first request, and again after a failure. It does not follow redirects."""

    def __init__(self, url: str, *, connect_s: float = CONNECT_SECONDS, silence_s: float = _SILENCE_SECONDS) -> None:
        """`url` is the base URL of a source, as checked by `is_source_url`.

        A connection attempt fails after `connect_s` seconds, and a request after `silence_s` seconds without a byte.
        """
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        self._context = ssl.create_default_context() if is_secure else None
        self._address = (parts.hostname or "", parts.port or (443 if is_secure else 80))
        self._http = http.client.HTTPConnection(*self._address)
        self._prefix = parts.path.rstrip("/")
        self._connect_s, self._silence_s = connect_s, silence_s
        self.received = 0
        """Number of bytes of the current body that have arrived."""
        self.etag: str | None = None
        """ETag of the last response. None if it had none."""
        self.expected: int | None = None
        """Size of the last body in bytes, as announced by the source. None if it was not announced."""
        self._is_aborted = False
        self._socket: socket.socket | None = None
        """Last socket. `HTTPConnection` drops its own reference before the body if the server announces that it will
        close.
        """

    def get(self, path: str, limit: int, *, etag: str | None = None) -> memoryview:
        """Return the body of a resource of at most `limit` bytes. Memory is allocated as the bytes arrive.

        Raises UnchangedError if the resource still has the ETag, and DeliveryError if it is not delivered.
        """
        with self._request(path, etag) as response:
            if (response.length or 0) > limit:
                raise DeliveryError(f"offers {response.length} bytes, but at most {limit} are allowed")
            data, buffer = bytearray(), memoryview(bytearray(min(_CHUNK, limit + 1)))
            while size := _receive(response, buffer[: limit + 1 - len(data)]):
                data += buffer[:size]
                self.received = len(data)
                if len(data) > limit:
                    raise DeliveryError(f"sends more than {limit} bytes")
            return memoryview(data)

    def get_into(self, path: str, target: memoryview) -> None:
        """Fill `target` with the body of a resource of exactly this size. Raises DeliveryError if that fails."""
        with self._request(path) as response:
            if response.length not in (None, len(target)):
                raise DeliveryError(f"offers {response.length} bytes instead of {len(target)}")
            self._receive_all(response, target)
            if self.received < len(target):
                raise ConnectionError(f"the body ended after {self.received} of {len(target)} bytes")

    def get_within(self, path: str, buffer: memoryview, *, etag: str | None = None) -> memoryview:
        """Return the body of a resource as a slice of `buffer`, whose size is the maximum.

        Raises UnchangedError if the resource still has the ETag, and DeliveryError if it is not delivered.
        """
        with self._request(path, etag) as response:
            if (response.length or 0) > len(buffer):
                raise DeliveryError(f"offers {response.length} bytes, but at most {len(buffer)} are allowed")
            self._receive_all(response, buffer)
            return buffer[: self.received]

    def abort(self) -> None:
        """Abort the current request from another thread. The request raises SilentError."""
        self._is_aborted = True
        if (sock := self._socket) is not None:
            # The connection may be closed already. `SSLSocket.shutdown` would let the reader see ciphertext.
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    @contextmanager
    def _request(self, path: str, etag: str | None = None) -> Iterator[http.client.HTTPResponse]:
        """Send a request, and yield the response before its body is read. Raises DeliveryError unless the status is
        200.

        Afterwards the connection stays open only if the body was read to its end, or if a small error body was.
        """
        self.received, self.etag, self._is_aborted = 0, None, False
        response, is_complete = None, False
        try:
            response = self._send_twice(path, etag)
            self.etag = response.headers.get("etag")
            if response.status != 200 and response.length is not None and response.length <= _DRAINED:
                response.read()
                is_complete = True
            if response.status == 304:
                raise UnchangedError("still has the same ETag")
            if response.status == 404:
                raise LackingError("does not have it")
            if response.status == 429:
                raise BusyError(_parse_seconds(response.headers.get("retry-after")))
            if response.status != 200:
                raise DeliveryError(f"answered with status {response.status}")
            self.expected = response.length
            yield response
            is_complete = True
        except _BROKEN as error:
            reason = "was too slow" if self._is_aborted else f"broke off: {type(error).__name__}: {error}"
            raise SilentError(reason) from error
        finally:
            if response is not None:
                response.close()  # The response has its own file object on the socket.
            if not is_complete:
                self.close()

    def _send_twice(self, path: str, etag: str | None) -> http.client.HTTPResponse:
        """Send a request, and send it once more if the server has closed the idle connection."""
        was_open = self._http.sock is not None
        try:
            return self._send(path, etag)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self._http.close()
            if not was_open or self._is_aborted:
                raise
        return self._send(path, etag)

    def _send(self, path: str, etag: str | None) -> http.client.HTTPResponse:
        if self._http.sock is None:
            self._connect()
        headers = {"accept-encoding": "identity"} | ({"if-none-match": etag} if etag else {})
        self._http.request("GET", self._prefix + path, headers=headers)
        return self._http.getresponse()

    def _connect(self) -> None:
        """Open the connection. Unlike `HTTPConnection.connect`, this ends as soon as `abort` is called."""
        failure = OSError("the host has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM):
            self._http.sock = self._socket = sock = socket.socket(family, kind, protocol)
            sock.settimeout(self._connect_s)
            try:
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                failure = error
                self._http.close()
            if self._is_aborted:
                raise TimeoutError("the connection was aborted while it was being opened")
            if self._http.sock is not None:
                break
        else:
            raise failure
        if self._context is not None:
            sock = self._context.wrap_socket(sock, server_hostname=self._address[0], do_handshake_on_connect=False)
            self._http.sock = self._socket = sock  # Before the handshake, so that `abort` can end it.
            sock.do_handshake()
        sock.settimeout(self._silence_s)

    def _receive_all(self, response: http.client.HTTPResponse, target: memoryview) -> None:
        """Receive a body to its end. Raises DeliveryError if it exceeds `target`."""
        while self.received < len(target):
            size = _receive(response, target[self.received : self.received + _CHUNK])
            if not size:
                return
            self.received += size
        if _receive(response, memoryview(bytearray(1))):
            raise DeliveryError(f"sends more than {len(target)} bytes")


def _parse_seconds(text: str | None) -> float:
    """Return the seconds in a retry-after header, at most _LONGEST_WAIT_SECONDS. The header may have any content."""
    try:
        seconds = float(text or "")
    except ValueError:
        return 1.0
    return 1.0 if math.isnan(seconds) else min(max(seconds, 0.1), _LONGEST_WAIT_SECONDS)


def _receive(response: http.client.HTTPResponse, target: memoryview) -> int:
    """Read the part of a body that has arrived, at least one byte, into `target`. Return its size, or 0 at the end.

    It does not wait until `target` is full, because a slow source would then look like a silent one.
    """
    if response.length is None:
        part = response.read1(len(target))
        target[: len(part)] = part
        return len(part)
    if not response.length:
        return 0
    size = response.fp.readinto1(target[: response.length])
    if not size:
        raise ConnectionError(f"the body ended {response.length} bytes too early")
    response.length -= size
    return size
