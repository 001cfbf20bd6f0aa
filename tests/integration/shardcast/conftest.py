"""Origins and relays on loopback, in this process."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from covey.protocol.pieces import compute_blake3
from covey.runtime.http import find_free_ports, serve_http
from covey.shardcast.origin import OriginSource
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_cache import PieceCache
from covey.shardcast.piece_server import PieceServer
from covey.shardcast.relay import Relay, RelaySettings
from covey.shardcast.upstream import Upstream
from tests.fakes.raw_server import HANG_S
from tests.fakes.served_policies import Publisher


@asynccontextmanager
async def serving(app):
    """Serve an application, and yield its URL."""
    stop, bound, (port,) = asyncio.Event(), asyncio.Event(), find_free_ports(1)
    task = asyncio.create_task(serve_http(app, host="127.0.0.1", port=port, stop=stop, on_bound=bound.set))
    try:
        async with asyncio.timeout(HANG_S):
            await bound.wait()
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        await task


class Broadcast:
    """One trainer's folder, with any number of origins and relays, and one client."""

    def __init__(self, tmp_path, stack):
        self._tmp_path, self._stack, self._count = tmp_path, stack, 0
        self.publisher = Publisher(OriginStore(tmp_path / "origin"), tmp_path)
        self.http = httpx.AsyncClient(trust_env=False, timeout=HANG_S)
        stack.push_async_callback(self.http.aclose)

    async def add_origin(self):
        """Serve the trainer's folder. Returns the URL and the application."""
        app = PieceServer(OriginSource(OriginStore(self.publisher.store.root)))
        return await self._stack.enter_async_context(serving(app)), app

    async def add_relay(self, *upstreams, stalls=None, **settings):
        """Serve what other servers serve. Returns the URL and the relay.

        `stalls` maps URLs of upstreams to the seconds without a byte after which a request to them fails. All others
        are healthy, so they are waited for even if this machine delays them.
        """
        self._count += 1
        cache = PieceCache(self._tmp_path / f"relay-{self._count}")
        waits = {url: (stalls or {}).get(url, 2 * HANG_S) for url in upstreams}
        servers = [Upstream(url, stall_s=wait_s, connect_s=HANG_S, base_s=HANG_S) for url, wait_s in waits.items()]
        relay = Relay(cache, servers, RelaySettings(**{"poll_s": 0.05, "fresh_s": 0.0} | settings))
        relay.start()
        self._stack.push_async_callback(relay.close)
        return await self._stack.enter_async_context(serving(PieceServer(relay))), relay

    async def get_pieces(self, url, manifest):
        """Return the statuses of all pieces, requested at once, and check the bytes of those that are served."""

        async def get(piece):
            answered = await self.http.get(f"{url}/pieces/{piece.digest}")
            assert answered.status_code != 200 or compute_blake3(answered.content) == piece.digest
            return answered.status_code

        return await asyncio.gather(*map(get, manifest.pieces))


@pytest.fixture
async def broadcast(tmp_path):
    async with AsyncExitStack() as stack:
        yield Broadcast(tmp_path, stack)
