"""HTTP servers in threads whose every byte a test decides: relays that lie, stall, drip or break off."""

import socket
import ssl
import threading
import time
from collections.abc import Callable

Send = Callable[[bytes], None]
HANG_S = 60.0
"""Deadline against hanging, in seconds. A peer that stalls does so for longer, or until its server is closed."""


def respond(body: bytes, status: int = 200, *, length: int | None = None) -> bytes:
    """Return a whole response. `length` is the content-length that it claims."""
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


class RawServer:
    """Calls `answer(path, send)` for each request. A connection ends unless that returns True.

    Example: `RawServer(lambda path, send: send(respond(b"abc")) or True)`.
    """

    def __init__(self, answer: Callable[[str, Send], bool | None], context: ssl.SSLContext | None = None) -> None:
        self.answer, self._context = answer, context
        self.paths: list[str] = []
        self.heads: list[bytes] = []
        """Request line and headers of each request."""
        self.connections = 0
        """Number of connections accepted so far."""
        self.open = 0
        """Number of connections that neither side has ended."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.is_closed = threading.Event()
        self.url = "http{}://127.0.0.1:{}".format("s" if context else "", self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "RawServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.is_closed.set()
        _shut_down(self._listener)  # It ends an `accept` under way, which `close` does not.
        self._listener.close()
        self.drop_connections()

    def drop_connections(self) -> None:
        """End all connections."""
        with self._lock:
            for each in self._sockets:
                _shut_down(each)

    def wait_until_idle(self, seconds: float = HANG_S) -> None:
        """Wait until no connection is open."""
        deadline = time.monotonic() + seconds
        while self.open:
            assert time.monotonic() < deadline, f"{self.open} connections are still open"
            time.sleep(0.005)

    def count(self, prefix: str) -> int:
        return sum(path.startswith(prefix) for path in self.paths)

    def _accept(self) -> None:
        while not self.is_closed.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets.append(accepted)
                self.connections, self.open = self.connections + 1, self.open + 1
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        try:
            if self._context:
                accepted = self._context.wrap_socket(accepted, server_side=True)
                self._sockets.append(accepted)
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    part = accepted.recv(1 << 16)
                    if not part:
                        return
                    data += part
                head, _, data = data.partition(b"\r\n\r\n")
                path = head.split(b" ")[1].decode()
                self.heads.append(head)
                self.paths.append(path)
                if not self.answer(path, accepted.sendall):
                    return
        except OSError:
            return
        finally:
            with self._lock:
                self.open -= 1
                self._sockets = [each for each in self._sockets if each is not accepted]
            _shut_down(accepted)
            accepted.close()


def drip(send: Send, body: bytes, *, rate: float, step: int = 0) -> None:
    """Send a body at `rate` bytes/s, `step` bytes at a time (a tenth of a second's worth by default)."""
    step = step or max(1, int(rate / 10))
    begun = time.monotonic()
    for start in range(0, len(body), step):
        send(body[start : start + step])
        time.sleep(max(0.0, begun + (start + step) / rate - time.monotonic()))


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
