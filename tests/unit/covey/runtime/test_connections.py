"""Peers that are slow on purpose, on real sockets: they are disconnected, and other clients are served meanwhile."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from covey.runtime.connections import ConnectionLimits, compute_cap
from covey.runtime.http import find_free_ports, serve_http

pytestmark = pytest.mark.integration

HALF_HEADERS = b"GET / HTTP/1.1\r\nhost: x\r\nx-more: "
HALF_BODY = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nhalf"
BIG = 8_000_000
SHORT = ConnectionLimits(headers_s=1, progress_s=1, progress_bytes=1000, idle_s=1)


async def application(scope, receive, send):
    """Read a body at /body, answer with many bytes at /big and /whole, and take two seconds at /poll."""
    if scope["type"] != "http":
        return
    path, more = scope["path"], True
    while path == "/body" and more:
        message = await receive()
        more = message.get("more_body", False)
    if path == "/poll":
        await asyncio.sleep(2)
    size = BIG if path in ("/big", "/whole") else 5
    length = (b"content-length", str(size).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    piece = 50_000 if path == "/big" else size
    for done in range(piece, size + 1, piece):
        await send({"type": "http.response.body", "body": bytes(piece), "more_body": done < size})


@asynccontextmanager
async def serving(limits):
    """Run a server, and yield its port."""
    stop, bound, (port,) = asyncio.Event(), asyncio.Event(), find_free_ports(1)
    task = asyncio.create_task(
        serve_http(application, host="127.0.0.1", port=port, stop=stop, on_bound=bound.set, limits=limits)
    )
    try:
        async with asyncio.timeout(10):
            await bound.wait()
        yield port
    finally:
        stop.set()
        await task


class Peers:
    """Connections of strangers, with small receive buffers."""

    def __init__(self, port):
        self.port, self.sockets = port, []

    async def open(self, count, sent=b""):
        """Connect and send; return the new sockets."""
        loop, new = asyncio.get_running_loop(), []
        for _ in range(count):
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
            peer.setblocking(False)
            self.sockets.append(peer)
            await loop.sock_connect(peer, ("127.0.0.1", self.port))
            await loop.sock_sendall(peer, sent)
            new.append(peer)
        return new

    def close(self):
        for peer in self.sockets:
            peer.close()


@pytest.fixture
async def meet():
    """Return a function that starts a server with given limits, and returns its port and its peers."""
    async with AsyncExitStack() as stack:

        async def start(limits):
            port = await stack.enter_async_context(serving(limits))
            peers = Peers(port)
            stack.callback(peers.close)
            return port, peers

        yield start


async def ask(port, path="/"):
    """Send a request on a new connection, and return the status of the response."""
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        return (await client.get(f"http://127.0.0.1:{port}{path}")).status_code


async def is_ended(peer):
    """Discard what the server sends until it ends the connection. Returns False if it does not within ten seconds."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(10):
            while await loop.sock_recv(peer, 1 << 16):
                pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


async def send_on(peer, piece, *, pause=0.0):
    """Send until the server has ended the connection. Returns the number of bytes sent."""
    loop, sent = asyncio.get_running_loop(), 0
    try:
        async with asyncio.timeout(10):
            while True:
                await loop.sock_sendall(peer, piece)
                sent += len(piece)
                await asyncio.sleep(pause)
    except (ConnectionResetError, BrokenPipeError):
        return sent


async def serve_until(port, condition, path="/"):
    """Send requests as new clients until `condition` holds. Returns the time of the slowest response in seconds."""
    slowest, deadline = 0.0, time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        started = time.monotonic()
        assert await ask(port, path) == 200
        slowest = max(slowest, time.monotonic() - started)
    return slowest


def count_descriptors():
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize(
    "sent",
    [b"", HALF_HEADERS, HALF_BODY, b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /whole HTTP/1.0\r\n\r\n",
     b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + HALF_HEADERS, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"],
    ids=["nothing", "half headers", "half a body", "a reader that does not read",
         "a reader that does not read a complete response", "half headers after a request", "only a request"],
)  # fmt: skip
async def test_slow_peers__two_hundred__are_disconnected_and_a_new_client_is_served(meet, sent):
    port, peers = await meet(SHORT)
    assert await ask(port) == 200
    before = count_descriptors()
    await peers.open(200, sent)
    assert await serve_until(port, lambda: count_descriptors() <= before + 200 + 5) < 3
    assert all(await asyncio.gather(*map(is_ended, peers.sockets)))


async def test_slow_peers__slow_but_steady_link__is_served_to_the_end(meet):
    """Reader and writer each take five times `progress_s`."""
    _, peers = await meet(SHORT)
    loop = asyncio.get_running_loop()
    (reader,) = await peers.open(1, b"GET /big HTTP/1.0\r\n\r\n")
    (writer,) = await peers.open(1, HALF_BODY)

    async def read():
        taken, more = 0, True
        while more:
            more = await loop.sock_recv(reader, 100_000)
            taken += len(more)
            await asyncio.sleep(0.05)
        return taken

    async def write():
        for _ in range(50):
            await asyncio.sleep(0.1)
            await loop.sock_sendall(writer, bytes(1000))
        await loop.sock_sendall(writer, bytes(1_000_000 - 50_000 - 4))
        return await loop.sock_recv(writer, 100)

    started = time.monotonic()
    taken, answer = await asyncio.gather(read(), write())
    assert time.monotonic() - started >= 5
    assert taken > BIG
    assert answer.startswith(b"HTTP/1.1 200")


async def test_slow_peers__rate_below_the_minimum__is_disconnected(meet):
    _, peers = await meet(SHORT)
    (peer,) = await peers.open(1, HALF_BODY)
    assert 5 < await send_on(peer, b"x", pause=0.1) < 30


@pytest.mark.parametrize("body", [b"", bytes(5_000_000)], ids=["a long poll", "a body that is not read"])
async def test_slow_application__peer_owes_nothing__deadlines_do_not_apply(meet, body):
    port, _ = await meet(SHORT)
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        assert (await client.post(f"http://127.0.0.1:{port}/poll", content=body)).status_code == 200


async def test_keep_alive__several_requests__on_one_connection(meet):
    port, _ = await meet(SHORT)
    before = count_descriptors()
    async with httpx.AsyncClient(trust_env=False) as client:
        for path in ("/", "/big", "/"):
            assert (await client.get(f"http://127.0.0.1:{port}{path}")).status_code == 200
        assert (await client.post(f"http://127.0.0.1:{port}/body", content=bytes(300_000))).status_code == 200
        assert count_descriptors() <= before + 2


@pytest.mark.parametrize(
    "head",
    [HALF_HEADERS, b"GET /", b"POST /body HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-trailer: "],
    ids=["a header", "a path", "a trailer"],
)
async def test_headers__without_end__are_refused_before_they_fill_memory(meet, head):
    port, peers = await meet(ConnectionLimits())
    (peer,) = await peers.open(1, head)
    assert await send_on(peer, b"a" * 10_000) < 5_000_000  # The sockets' buffers hold part of it.
    assert await ask(port) == 200


@pytest.mark.parametrize(
    ("sent", "rest"),
    [(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n"),
     (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nhal", b"f")],
    ids=["a blank line", "the end of a body"],
)  # fmt: skip
async def test_keep_alive__bytes_without_a_request_after_a_response__do_not_keep_the_connection(meet, sent, rest):
    """Uvicorn cancels its own deadline as soon as any bytes arrive."""
    _, peers = await meet(SHORT)
    (peer,) = await peers.open(1, sent)
    loop = asyncio.get_running_loop()
    answer = b""
    while not answer.endswith(bytes(5)):
        answer += await loop.sock_recv(peer, 1000)
    await loop.sock_sendall(peer, rest)
    assert await is_ended(peer)


async def test_cap__all_wait__the_oldest_is_closed(meet):
    port, peers = await meet(ConnectionLimits(connections=10))
    first, second = await peers.open(2)
    await peers.open(8, HALF_HEADERS)
    assert await ask(port) == 200
    assert await is_ended(first)
    assert await ask(port) == 200
    with pytest.raises(BlockingIOError):
        second.recv(1)  # Still open: the previous client had already ended, so only one connection was over the cap.


@pytest.mark.parametrize("sent", [HALF_BODY, b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["bodies", "readers"])
async def test_cap__all_owe_something__the_slowest_is_closed_and_one_with_progress_stays(meet, sent):
    """Slow peers stay until their deadline and are replaced at once, so other clients are served only at their cost."""
    port, peers = await meet(ConnectionLimits(connections=8, progress_s=5, progress_bytes=1000))
    loop = asyncio.get_running_loop()
    (upload,) = await peers.open(1, b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 400000\r\n\r\n")
    await peers.open(6, sent)
    for _ in range(4):
        await peers.open(1, sent)
        for _ in range(4):
            await loop.sock_sendall(upload, bytes(25_000))
            await asyncio.sleep(0.25)
        assert await ask(port) == 200
    assert (await loop.sock_recv(upload, 1 << 10)).startswith(b"HTTP/1.1 200")


async def test_cap__all_are_being_served__only_the_new_one_is_closed(meet):
    port, peers = await meet(ConnectionLimits(connections=10))
    working = await peers.open(10, b"GET /poll HTTP/1.0\r\n\r\n")
    (late,) = await peers.open(1)
    assert await is_ended(late)
    loop = asyncio.get_running_loop()
    for peer in working:
        assert (await loop.sock_recv(peer, 100)).startswith(b"HTTP/1.1 200")
    assert await ask(port) == 200


@pytest.mark.parametrize(
    ("connections", "descriptors", "cap"), [(8192, 1024, 320), (8192, 20_000, 8192), (100, 1024, 100), (8192, 64, 1)]
)
def test_compute_cap__values_by_hand__two_descriptors_per_connection(connections, descriptors, cap):
    assert compute_cap(ConnectionLimits(connections=connections), descriptors) == cap


SERVER = """
import asyncio, resource, sys
from pathlib import Path
from covey.runtime.connections import ConnectionLimits
from covey.runtime.log import configure
from covey.runtime.http import serve_http
from covey.shardcast.origin import OriginSource
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_server import PieceServer

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
configure("origin")
app, limits = PieceServer(OriginSource(OriginStore(Path(sys.argv[1])))), ConnectionLimits(headers_s=4)
asyncio.run(serve_http(app, host="127.0.0.1", port=int(sys.argv[2]), stop=asyncio.Event(), on_bound=lambda:
    print("serves", flush=True), limits=limits))
"""


@pytest.fixture
def crowded_origin(tmp_path):
    """Run an origin in a process with 1,024 descriptors, yield its port, and check that it did not run out of them."""
    (port,) = find_free_ports(1)
    command = [sys.executable, "-c", SERVER, str(tmp_path), str(port)]
    root = Path(__file__).resolve().parents[4]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout.readline() == "serves\n"
            yield port
        finally:
            server.kill()
            errors = server.communicate(timeout=10)[1]
    assert "too many connections" in errors
    assert "system resource" not in errors


async def test_origin__more_idle_connections_than_descriptors__a_new_client_is_served(crowded_origin):
    peers = Peers(crowded_origin)
    try:
        ended = [asyncio.create_task(is_ended(peer)) for peer in await peers.open(1100)]
        slowest = await serve_until(crowded_origin, lambda: all(task.done() for task in ended), "/health")
        assert slowest < 3
        assert all(task.result() for task in ended)
    finally:
        peers.close()
