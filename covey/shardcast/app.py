"""Runs an origin, or with an upstream a relay, until a stop signal: `covey origin run`, `covey relay run`."""

import asyncio
from pathlib import Path

from covey.runtime.cycle import stop_signals
from covey.runtime.http import serve_http
from covey.runtime.log import configure, get_logger
from covey.runtime.urls import hide_secrets
from covey.shardcast.server import Mirror, build_server
from covey.shardcast.store import KEPT_DATASETS, KEPT_POLICIES, ShardStore


def run(
    *,
    root: Path,
    host: str,
    port: int,
    upstream: str | None = None,
    keep: int = KEPT_POLICIES,
    keep_datasets: int = KEPT_DATASETS,
) -> None:
    """Serve the folder `root`; a relay fills it from `upstream` and keeps the newest policies and data sets."""
    configure("relay" if upstream else "origin")
    store = ShardStore(root)
    mirror = Mirror(store, upstream, keep=keep, keep_datasets=keep_datasets) if upstream else None
    asyncio.run(_run(store, mirror, host, port, upstream))


async def _run(store: ShardStore, mirror: Mirror | None, host: str, port: int, upstream: str | None) -> None:
    stop = asyncio.Event()

    def say() -> None:
        shown = None if upstream is None else hide_secrets(upstream)
        get_logger().info("serves policies", url=f"http://{host}:{port}", upstream=shown)

    with stop_signals(stop):
        await serve_http(build_server(store, mirror), host=host, port=port, stop=stop, on_bound=say)
    if mirror is not None:
        await mirror.close()
