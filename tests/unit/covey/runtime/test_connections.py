"""Peers that are slow on purpose, on real sockets: they are disconnected, and other clients are served meanwhile."""

import asyncio
import gc
import os
import socket
import struct
import subprocess
import sys
import weakref
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from covey.runtime import connections
from covey.runtime.connections import ConnectionLimits, GuardedProtocol, compute_cap
from covey.runtime.file_sending import SEND_FILE, FilePart
from covey.runtime.http import find_free_ports, serve_http

pytestmark = pytest.mark.integration

HALF_HEADERS = b"GET / HTTP/1.1\r\nhost: x\r\nx-more: "
HALF_BODY = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nhalf"
BIG, WHOLE = 8_000_000, 600_000
"""Sizes in bytes of the responses at /big and /whole. Both are larger than the buffers of two sockets."""
SHORT = ConnectionLimits(headers_s=1, progress_s=1, progress_bytes=1000, idle_s=1)
LONG = ConnectionLimits(headers_s=600, progress_s=600, progress_bytes=1000, idle_s=600)
"""Limits that no peer of a test reaches, however slow the machine is."""
TENTH = ConnectionLimits(headers_s=0.1, progress_s=0.1, progress_bytes=1000, idle_s=600)
"""Limits for a server with the fake clock, which checks each connection a hundred times per real second."""
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


class Application:
    """Reads a body at /body, answers in parts at /big, at once at /whole, with a file at /file, and at /poll only after
    `release` is set.
    """

    def __init__(self):
        self.polls, self.release = 0, asyncio.Event()
        self.file = os.memfd_create("file")
        os.truncate(self.file, BIG)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        path, more = scope["path"], True
        while path == "/body" and more:
            message = await receive()
            more = message.get("more_body", False)
        if path == "/poll":
            self.polls += 1
            await self.release.wait()
        size = {"/big": BIG, "/file": BIG, "/whole": WHOLE}.get(path, 5)
        length = (b"content-length", str(size).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        if path == "/file":
            await scope["extensions"][SEND_FILE](FilePart(self.file, 0, BIG))
            return
        piece = 50_000 if path == "/big" else size
        for done in range(piece, size + 1, piece):
            await send({"type": "http.response.body", "body": bytes(piece), "more_body": done < size})


@asynccontextmanager
async def serving(limits, application):
    """Run a server, and yield its port."""
    stop, bound, (port,) = asyncio.Event(), asyncio.Event(), find_free_ports(1)
    task = asyncio.create_task(
        serve_http(application, host="127.0.0.1", port=port, stop=stop, on_bound=bound.set, limits=limits)
    )
    try:
        async with asyncio.timeout(HANG_S):
            await bound.wait()
        yield port
    finally:
        application.release.set()
        stop.set()
        await task
        os.close(application.file)


class FakeClock:
    """The clock of the server's deadlines, which only a test moves, and the connections that the server has checked."""

    def __init__(self):
        self.now = 1000.0
        self.looks = {}
        """Number of checks of each connection."""

    async def await_checks(self, *, among=1):
        """Wait until every open connection, and at least `among`, was checked twice by the present time."""
        seen = dict(self.looks)

        def is_checked():
            opened = [each for each in self.looks if not each.transport.is_closing()]
            return len(opened) >= among and all(self.looks[each] >= seen.get(each, 0) + 2 for each in opened)

        await wait_until(is_checked)


@pytest.fixture
def clock(monkeypatch):
    fake, look = FakeClock(), GuardedProtocol.look

    def look_and_count(connection):
        look(connection)
        fake.looks[connection] = fake.looks.get(connection, 0) + 1

    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: fake.now))
    monkeypatch.setattr(GuardedProtocol, "look", look_and_count)
    return fake


async def wait_until(is_so):
    async with asyncio.timeout(HANG_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


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
            with suppress(ConnectionResetError, BrokenPipeError):  # A server with short limits may have ended it.
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

        async def start(limits, application=None):
            port = await stack.enter_async_context(serving(limits, application or Application()))
            peers = Peers(port)
            stack.callback(peers.close)
            return port, peers

        yield start


async def ask(port, path="/"):
    """Send a request on a new connection, and return the status of the response."""
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        return (await client.get(f"http://127.0.0.1:{port}{path}")).status_code


async def is_ended(peer):
    """Discard what the server sends until it ends the connection. Returns False if it does not within `HANG_S`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(HANG_S):
            while await loop.sock_recv(peer, 1 << 16):
                pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


async def send_on(peer, piece):
    """Send until the server has ended the connection. Returns the number of bytes sent."""
    loop, sent = asyncio.get_running_loop(), 0
    try:
        async with asyncio.timeout(HANG_S):
            while True:
                await loop.sock_sendall(peer, piece)
                sent += len(piece)
                await asyncio.sleep(0)
    except (ConnectionResetError, BrokenPipeError):
        return sent


async def receive(peer, size):
    """Receive `size` bytes."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HANG_S):
        while size:
            piece = await loop.sock_recv(peer, min(size, 1 << 16))
            assert piece, "the server has ended the connection"
            size -= len(piece)


def count_descriptors():
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize(
    "sent",
    [b"", HALF_HEADERS, HALF_BODY, b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /whole HTTP/1.0\r\n\r\n",
     b"GET /file HTTP/1.1\r\nhost: x\r\n\r\n" * 3,
     b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + HALF_HEADERS, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"],
    ids=["nothing", "half headers", "half a body", "a reader that does not read",
         "a reader that does not read a complete response", "a reader that does not read files",
         "half headers after a request", "only a request"],
)  # fmt: skip
async def test_slow_peers__two_hundred__are_disconnected_and_a_new_client_is_served(meet, sent):
    patient_port, staying = await meet(LONG)
    await staying.open(200, sent)
    assert await ask(patient_port) == 200, "a new client does not wait until they are disconnected"

    _, peers = await meet(SHORT)
    before = count_descriptors()
    await peers.open(200, sent)
    await wait_until(lambda: count_descriptors() <= before + 200 + 5)
    assert all(await asyncio.gather(*map(is_ended, peers.sockets)))


@pytest.mark.parametrize("path", [b"/big", b"/file"])
async def test_slow_peers__slow_but_steady_link__is_served_to_the_end(meet, clock, path):
    """Reader and writer each take nine times `progress_s`."""
    _, peers = await meet(TENTH)
    loop = asyncio.get_running_loop()
    (reader,) = await peers.open(1, b"GET %s HTTP/1.0\r\n\r\n" % path)
    (writer,) = await peers.open(1, HALF_BODY)
    for _ in range(10):
        await receive(reader, BIG // 20)
        await loop.sock_sendall(writer, bytes(1000))
        await clock.await_checks(among=2)
        clock.now += 0.9 * TENTH.progress_s
        await clock.await_checks(among=2)
    await receive(reader, BIG // 2)
    await loop.sock_sendall(writer, bytes(1_000_000 - 10_000 - 4))
    async with asyncio.timeout(HANG_S):
        assert (await loop.sock_recv(writer, 100)).startswith(b"HTTP/1.1 200")


async def test_slow_peers__rate_below_the_minimum__is_disconnected(meet, clock):
    _, peers = await meet(TENTH)
    (peer,) = await peers.open(1, HALF_BODY)
    await clock.await_checks()
    for _ in range(3):
        await asyncio.get_running_loop().sock_sendall(peer, b"x")
        clock.now += 0.3 * TENTH.progress_s
        await clock.await_checks()
    clock.now += 0.3 * TENTH.progress_s
    assert await is_ended(peer)


@pytest.mark.parametrize("body", [b"", bytes(5_000_000)], ids=["a long poll", "a body that is not read"])
async def test_slow_application__peer_owes_nothing__deadlines_do_not_apply(meet, clock, body):
    application = Application()
    port, _ = await meet(TENTH, application)
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        asking = asyncio.create_task(client.post(f"http://127.0.0.1:{port}/poll", content=body))
        await clock.await_checks()
        await wait_until(lambda: all(each.flow.read_paused or each._missing is None for each in clock.looks))
        for _ in range(10):
            clock.now += TENTH.progress_s
            await clock.await_checks()
        assert application.polls == 1
        application.release.set()
        assert (await asking).status_code == 200


async def test_keep_alive__several_requests__on_one_connection(meet):
    port, _ = await meet(LONG)
    before = count_descriptors()
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
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
async def test_keep_alive__bytes_without_a_request_after_a_response__do_not_keep_the_connection(
    meet, clock, sent, rest
):
    """Uvicorn cancels its own deadline as soon as any bytes arrive."""
    _, peers = await meet(TENTH)
    (peer,) = await peers.open(1, sent)
    loop = asyncio.get_running_loop()
    answer = b""
    async with asyncio.timeout(HANG_S):
        while not answer.endswith(bytes(5)):
            answer += await loop.sock_recv(peer, 1000)
    await loop.sock_sendall(peer, rest)
    await clock.await_checks()
    clock.now += TENTH.headers_s
    assert await is_ended(peer)


async def test_cap__all_wait__the_oldest_is_closed(meet):
    port, peers = await meet(replace(LONG, connections=10))
    first, second = await peers.open(2)
    await peers.open(8, HALF_HEADERS)
    assert await ask(port) == 200
    assert await is_ended(first)
    assert await ask(port) == 200
    with pytest.raises(BlockingIOError):
        second.recv(1)  # Still open: the previous client had already ended, so only one connection was over the cap.


@pytest.mark.parametrize("sent", [HALF_BODY, b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["bodies", "readers"])
async def test_cap__all_owe_something__the_slowest_is_closed_and_one_with_progress_stays(meet, clock, sent):
    """Slow peers stay until their deadline and are replaced at once, so other clients are served only at their cost."""
    port, peers = await meet(replace(TENTH, connections=8))
    loop = asyncio.get_running_loop()
    (upload,) = await peers.open(1, b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 400000\r\n\r\n")
    await peers.open(6, sent)
    for _ in range(4):
        await peers.open(1, sent)
        for _ in range(4):
            await loop.sock_sendall(upload, bytes(25_000))
            await clock.await_checks(among=2)
            clock.now += 0.05 * TENTH.progress_s
        assert await ask(port) == 200
    async with asyncio.timeout(HANG_S):
        assert (await loop.sock_recv(upload, 1 << 10)).startswith(b"HTTP/1.1 200")


async def test_cap__all_are_being_served__only_the_new_one_is_closed(meet):
    application = Application()
    port, peers = await meet(replace(LONG, connections=10), application)
    working = await peers.open(10, b"GET /poll HTTP/1.0\r\n\r\n")
    await wait_until(lambda: application.polls == 10)
    (late,) = await peers.open(1)
    assert await is_ended(late)
    application.release.set()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HANG_S):
        for peer in working:
            assert (await loop.sock_recv(peer, 100)).startswith(b"HTTP/1.1 200")
    assert await ask(port) == 200


@pytest.mark.parametrize(
    ("connections", "each", "descriptors", "cap"),
    [(8192, 2, 1024, 320), (8192, 3, 1024, 213), (8192, 2, 20_000, 8192), (100, 3, 1024, 100), (8192, 2, 64, 1)],
)
def test_compute_cap__values_by_hand__some_descriptors_per_connection(connections, each, descriptors, cap):
    assert compute_cap(ConnectionLimits(connections=connections, descriptors=each), descriptors) == cap


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
app, limits = PieceServer(OriginSource(OriginStore(Path(sys.argv[1])))), ConnectionLimits(headers_s=600)
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
            errors = server.communicate(timeout=HANG_S)[1]
    assert "too many connections" in errors
    assert "system resource" not in errors


async def test_origin__more_idle_connections_than_descriptors__a_new_client_is_served(crowded_origin):
    """No idle connection reaches a deadline, so only those that are closed to make room for another one end."""
    peers = Peers(crowded_origin)
    ended = []
    try:
        ended = [asyncio.create_task(is_ended(peer)) for peer in await peers.open(1100)]
        for _ in range(3):
            assert await ask(crowded_origin, "/health") == 200
        await wait_until(lambda: sum(task.done() for task in ended) >= 1100 - 512)
        assert all(task.result() for task in ended if task.done())
        assert not all(task.done() for task in ended)
    finally:
        for task in ended:
            task.cancel()
        peers.close()


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_connection_lost__many_requests__leaves_nothing_to_the_garbage_collector(monkeypatch, is_reset):
    """A server collects its garbage rarely, so what only a collection frees would fill its memory."""
    opened = []

    def connection_made(self, transport):
        opened.append(weakref.ref(self))
        made(self, transport)

    made = GuardedProtocol.connection_made
    monkeypatch.setattr(GuardedProtocol, "connection_made", connection_made)
    gc.collect()
    gc.disable()
    try:
        async with serving(LONG, Application()) as port:
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                for _ in range(2):
                    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                    await reader.readuntil(bytes(5))
                if is_reset:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.close()
            await wait_until(lambda: len(opened) == 3 and not any(each() for each in opened))
    finally:
        gc.enable()
