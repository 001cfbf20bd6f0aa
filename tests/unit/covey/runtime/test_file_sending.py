"""Files that are sent over real connections, with the event loops of a test and of a server."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager

import pytest
import uvloop

from covey.runtime import file_sending
from covey.runtime.connections import ConnectionLimits
from covey.runtime.file_sending import SEND_FILE, FilePart
from covey.runtime.http import find_free_ports, serve_http

pytestmark = pytest.mark.integration
SIZE = 3_000_000
"""Size in bytes of a file. It is larger than the buffers of two sockets."""
HANG_S = 60
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


class FileApplication:
    """Answers each request with the bytes of a file from byte 5 on, and keeps what the extension has returned."""

    def __init__(self, path, *, size=SIZE - 5):
        self.path, self.size, self.results = path, size, []

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        length = (b"content-length", str(self.size).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        with self.path.open("rb") as file:
            try:
                self.results.append(await scope["extensions"][SEND_FILE](FilePart(file.fileno(), 5, self.size)))
            except OSError as error:
                self.results.append(str(error))


@asynccontextmanager
async def serving(application):
    """Run a server, and yield a function that opens a connection with a small buffer."""
    stop, bound, (port,) = asyncio.Event(), asyncio.Event(), find_free_ports(1)
    limits = ConnectionLimits(headers_s=HANG_S, progress_s=HANG_S)
    task = asyncio.create_task(
        serve_http(application, host="127.0.0.1", port=port, stop=stop, on_bound=bound.set, limits=limits)
    )
    peers = []

    async def connect(sent):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
        await asyncio.get_running_loop().sock_sendall(peer, sent)
        peers.append(peer)
        return peer

    try:
        async with asyncio.timeout(HANG_S):
            await bound.wait()
            yield connect
    finally:
        stop.set()
        await task
        for peer in peers:
            peer.close()


async def receive(peer, size):
    """Return the next `size` bytes, or fewer if the connection ends."""
    data = bytearray()
    while len(data) < size and (part := await asyncio.get_running_loop().sock_recv(peer, size - len(data))):
        data += part
    return bytes(data)


async def receive_body(peer):
    """Return the body of the next response."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await receive(peer, 1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    return await receive(peer, int(length.split(b": ")[1]))


async def wait_until(is_so):
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def count_links(path):
    """Return how many descriptors of this process lead to a file."""
    found = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(os.path.exists(each) and os.readlink(each) == str(path) for each in found)


def test_send__several_requests_on_one_connection__are_answered_in_order(run, path):
    async def main():
        app = FileApplication(path)
        async with serving(app) as connect:
            peer = await connect(REQUEST)
            bodies = [await receive_body(peer)]
            await asyncio.get_running_loop().sock_sendall(peer, REQUEST + REQUEST)
            bodies += [await receive_body(peer), await receive_body(peer)]
        assert bodies == [path.read_bytes()[5:]] * 3
        assert app.results == [True] * 3

    run(main())
    assert not count_links(path)


def test_send__peer_leaves_in_the_middle__only_its_own_file_ends(run, path):
    async def main():
        app = FileApplication(path)
        async with serving(app) as connect:
            peer, other = await connect(REQUEST), await connect(REQUEST)
            await receive(peer, 1000)
            peer.close()
            assert await receive_body(other) == path.read_bytes()[5:]
            await wait_until(lambda: len(app.results) == 2)
        assert sorted(app.results) == [False, True]

    run(main())
    assert not count_links(path)


def test_send__file_is_shorter__peer_is_disconnected_and_cannot_take_it_for_the_whole(run, path):
    async def main():
        app = FileApplication(path, size=SIZE)
        async with serving(app) as connect:
            assert len(await receive_body(await connect(REQUEST))) == SIZE - 5
        assert app.results == [f"the file ends at byte {SIZE}, before byte {SIZE + 5}"]

    run(main())


def test_send__server_stops__does_not_wait_for_a_peer_that_does_not_read(run, path):
    async def main():
        app = FileApplication(path)
        async with serving(app) as connect:
            await receive(await connect(REQUEST), 1000)

    run(main())
    assert not count_links(path)


def test_send__bytes_are_on_disk_only__a_thread_reads_them_first(run, path, monkeypatch):
    probed, read = [], []

    def probe(descriptor, buffers, offset, flags):
        probed.append((offset, flags))
        raise BlockingIOError

    def read_ahead(descriptor, size, offset):
        read.append((size, offset))
        return b""

    monkeypatch.setattr(file_sending.os, "preadv", probe)
    monkeypatch.setattr(file_sending.os, "pread", read_ahead)

    async def main():
        async with serving(FileApplication(path)) as connect:
            assert await receive_body(await connect(REQUEST)) == path.read_bytes()[5:]

    run(main())
    assert probed == [(SIZE - 1, os.RWF_NOWAIT)]
    assert read == [(SIZE - 5, 5)]
