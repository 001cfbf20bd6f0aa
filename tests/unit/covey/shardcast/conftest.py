"""Servers on loopback: an origin with a policy, relays, and relays that do harm."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from covey.runtime.http import find_free_ports, serve_http
from covey.shardcast.client import ShardClient
from covey.shardcast.server import Mirror, build_server
from covey.shardcast.store import Retention, ShardStore, add_policy

SHARD_BYTES = 1000


@asynccontextmanager
async def serving(app):
    """The base URL of an application that listens."""
    stop, (port,) = asyncio.Event(), find_free_ports(1)
    task = asyncio.create_task(serve_http(app, host="127.0.0.1", port=port, stop=stop))
    try:
        while True:
            assert not task.done()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.005)
                continue
            writer.close()
            await writer.wait_closed()
            break
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        await task


class Recorder:
    """Wraps an application: notes paths, and lets a test alter what goes out."""

    def __init__(self, app, alter=None):
        self.app, self.alter, self.paths = app, alter, []

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        self.paths.append(scope["path"])
        if self.alter is not None and (answer := self.alter(scope["path"])) is not None:
            return await answer(scope, receive, send)
        return await self.app(scope, receive, send)

    def count(self, prefix):
        return sum(path.startswith(prefix) for path in self.paths)


def build_liar(answer):
    """A relay that gives `answer(path)` to everything."""

    async def lie(request):
        found = answer(request.url.path)
        return found if isinstance(found, Response) else Response(found)

    return Starlette(routes=[Route("/{path:path}", lie)])


class ShardcastHarness:
    """One origin, whatever relays a test adds, and clients."""

    def __init__(self, tmp_path, stack):
        self.tmp_path, self._stack, self._count = tmp_path, stack, 0
        self.store, self.retention = ShardStore(tmp_path / "origin"), Retention()
        self._http = httpx.AsyncClient(trust_env=False, verify=False, headers={"connection": "close"})
        stack.push_async_callback(self._http.aclose)

    async def serve(self, app):
        return await self._stack.enter_async_context(serving(app))

    def publish(self, step, files, *, pool=1, shard_bytes=SHARD_BYTES):
        folder = self.tmp_path / f"policy-{pool}-{step}"
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return add_policy(self.store, folder, pool=pool, step=step, shard_bytes=shard_bytes)

    async def add_origin(self, alter=None):
        recorder = Recorder(build_server(self.store), alter)
        return await self.serve(recorder), recorder

    async def add_relay(self, upstream, store=None, **settings):
        self._count += 1
        store = store or ShardStore(self.tmp_path / f"relay-{self._count}")
        mirror = Mirror(store, upstream, **settings)
        self._stack.push_async_callback(mirror.close)
        recorder = Recorder(build_server(store, mirror))
        return await self.serve(recorder), recorder, store

    def connect(self, *relays, seed=0, **settings):
        client = ShardClient(relays, seed=seed, **settings)
        self._stack.push_async_callback(client.close)
        return client

    async def fetch(self, client, manifest, name="got"):
        return await client.fetch(
            pool=manifest.pool, step=manifest.step, manifest_hash=manifest.compute_hash(), folder=self.tmp_path / name
        )

    async def get(self, url):
        return await self._http.get(url)

    async def get_manifest(self, url, manifest):
        return await self.get(url + manifest.compute_name().path)

    async def get_shard(self, url, shard, manifest):
        return await self.get(url + manifest.compute_name().get_shard_path(shard.sha256))


@pytest.fixture
async def harness(tmp_path):
    async with AsyncExitStack() as stack:
        yield ShardcastHarness(tmp_path, stack)
