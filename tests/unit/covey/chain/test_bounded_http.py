"""Answers that a node sends too slowly, or that are too large."""

import gzip
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from requests import RequestException

from covey.chain.bounded_http import AnswerTooLargeError, BoundedSession
from covey.chain.json_rpc import ChainClient
from covey.errors import TransientError

pytestmark = pytest.mark.unit
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
RESULT = b'{"jsonrpc": "2.0", "id": 1, "result": "0x2a"}'
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server on loopback that answers each request with pieces of bytes, and pauses after each piece."""
    stopped = threading.Event()
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def answer(server: socket.socket, pieces: Callable[[], Iterator[bytes]], pause_s: float) -> None:
        while not stopped.is_set():
            try:
                peer, _ = server.accept()
            except OSError:
                return
            opened.append(peer)
            with peer, suppress(OSError):
                while request := peer.recv(2**16):
                    if request[-1:] not in (b"}", b"x"):
                        continue
                    for piece in pieces():
                        peer.sendall(piece)
                        if stopped.wait(pause_s):
                            return

    def start(pieces: Callable[[], Iterator[bytes]], pause_s: float = 0.0) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        server.settimeout(5)
        opened.append(server)
        threads.append(threading.Thread(target=answer, args=(server, pieces, pause_s), daemon=True))
        threads[-1].start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield start
    stopped.set()
    for each in opened:
        with suppress(OSError):  # The peer has closed it already.
            each.shutdown(socket.SHUT_RDWR)
        each.close()
    for thread in threads:
        thread.join(5)


def drip_body() -> Iterator[bytes]:
    yield HEAD + b"Content-Length: 1000\r\n\r\n"
    yield from itertools.repeat(b" ", 100)


def drip_headers() -> Iterator[bytes]:
    yield HEAD
    yield from itertools.repeat(b"x", 100)


def drip_chunks() -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    yield from itertools.repeat(b"1\r\n \r\n", 100)


def drip_continues() -> Iterator[bytes]:
    yield from itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n", 100)


@pytest.mark.parametrize("pieces", [drip_body, drip_headers, drip_chunks, drip_continues])
def test_request__node_drips_its_answer__is_late_at_the_deadline(serve: Serve, pieces: Callable[[], Iterator[bytes]]):
    client = ChainClient(serve(pieces, 0.05), timeout_s=0.3)
    start = time.monotonic()
    with pytest.raises(TransientError, match="chain_unreachable"):
        client.chain_id()
    assert 0.2 < time.monotonic() - start < 1.0


def answer_plainly() -> Iterator[bytes]:
    yield HEAD + b"Content-Length: " + str(len(RESULT)).encode() + b"\r\n\r\n" + RESULT


def answer_slowly() -> Iterator[bytes]:
    yield HEAD + b"Content-Length: " + str(len(RESULT)).encode() + b"\r\n\r\n"
    for at in range(0, len(RESULT), 10):
        yield RESULT[at : at + 10]


def answer_compressed() -> Iterator[bytes]:
    body = gzip.compress(RESULT)
    yield HEAD + b"Content-Encoding: gzip\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("pieces", [answer_plainly, answer_slowly, answer_compressed])
def test_request__answer_in_time__is_read(serve: Serve, pieces: Callable[[], Iterator[bytes]]):
    assert ChainClient(serve(pieces, 0.02), timeout_s=5.0, max_bytes=len(RESULT)).chain_id() == 42


def test_request__deadline_of_one_request__does_not_shorten_the_next(serve: Serve):
    client = ChainClient(serve(answer_slowly, 0.05), timeout_s=0.5)
    assert [client.chain_id() for _ in range(3)] == [42, 42, 42]


def send_large() -> Iterator[bytes]:
    yield HEAD + b"\r\n"
    yield from itertools.repeat(b" " * 2**16)


def send_large_failure() -> Iterator[bytes]:
    yield b"HTTP/1.1 500 Failed\r\n\r\n"
    yield from itertools.repeat(b" " * 2**16)


def send_large_redirect() -> Iterator[bytes]:
    yield b"HTTP/1.1 307 Moved\r\nLocation: /\r\n\r\n"
    yield from itertools.repeat(b" " * 2**16)


def send_compressed_bomb() -> Iterator[bytes]:
    body = gzip.compress(bytes(2**21))
    yield HEAD + b"Content-Encoding: gzip\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("pieces", [send_large, send_large_failure, send_large_redirect, send_compressed_bomb])
def test_request__answer_is_too_large__is_unreadable(serve: Serve, pieces: Callable[[], Iterator[bytes]]):
    client = ChainClient(serve(pieces), timeout_s=10.0, max_bytes=2**20)
    with pytest.raises(TransientError, match=r"bad_answer: .* with more than 1048576 bytes") as caught:
        client.chain_id()
    assert isinstance(caught.value.__cause__, AnswerTooLargeError)


def test_session__node_redirects_forever__is_an_error(serve: Serve):
    with pytest.raises(RequestException, match="Exceeded 1 redirects"):
        BoundedSession(max_bytes=100).post(
            serve(lambda: iter([b"HTTP/1.1 307 Moved\r\nContent-Length: 0\r\nLocation: /\r\n\r\n"])), b"x", timeout=5.0
        )
