"""Runs an origin, or with an upstream a relay, until a stop signal: `covey origin run`, `covey relay run`."""

import asyncio
from pathlib import Path

from covey.log import configure, get_logger
from covey.runtime import serve_http, stop_signals
from covey.shardcast.server import Mirror, build_server
from covey.shardcast.store import ShardStore


def run(*, root: Path, host: str, port: int, upstream: str | None = None) -> None:
    """Serve the folder `root`; a relay fills it from `upstream`."""
    configure("relay" if upstream else "origin")
    asyncio.run(_run(ShardStore(root), host, port, upstream))


async def _run(store: ShardStore, host: str, port: int, upstream: str | None) -> None:
    stop = asyncio.Event()
    mirror = Mirror(store, upstream) if upstream else None
    with stop_signals(stop):
        get_logger().info("serves policies", url=f"http://{host}:{port}", upstream=upstream)
        await serve_http(build_server(store, mirror), host=host, port=port, stop=stop)
    if mirror is not None:
        await mirror.close()
