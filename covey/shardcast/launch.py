"""Runs an origin or a relay until a stop signal."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from covey.runtime.connections import ConnectionLimits
from covey.runtime.cycle import stop_signals
from covey.runtime.http import serve_http
from covey.runtime.log import configure, get_logger
from covey.runtime.rate_limit import RateLimits
from covey.shardcast.origin import OriginSource
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_cache import PieceCache
from covey.shardcast.piece_server import PieceServer
from covey.shardcast.relay import Relay, RelaySettings
from covey.shardcast.upstream import Upstream

_CONNECTIONS = ConnectionLimits(descriptors=3)


def run_origin(*, root: Path, host: str, port: int, limits: RateLimits | None = None) -> None:
    """Serve the folder `root`, which trainers write. It may be empty at first."""
    configure("origin")
    store = OriginStore(root)
    uvloop.run(_run_origin(store, host=host, port=port, limits=limits))


async def _run_origin(store: OriginStore, *, host: str, port: int, limits: RateLimits | None) -> None:
    stop = asyncio.Event()

    def log_start() -> None:
        get_logger().info("origin serves policies", url=f"http://{host}:{port}", root=str(store.root))

    _start_check(store.verify_all)
    with stop_signals(stop):
        server = PieceServer(OriginSource(store), limits)
        await serve_http(server, host=host, port=port, stop=stop, on_bound=log_start, limits=_CONNECTIONS)


def run_relay(
    *,
    root: Path,
    upstreams: Sequence[str],
    host: str,
    port: int,
    settings: RelaySettings | None = None,
    limits: RateLimits | None = None,
    max_bytes: int | None = None,
) -> None:
    """Serve what the upstreams serve, and cache it in the folder `root`.

    `max_bytes` is the maximum total size of the pieces in the folder. None means that only the disk limits it. Raises
    OperatorError("bad_upstream") if an upstream is not a URL.
    """
    configure("relay")
    servers = [Upstream(url) for url in upstreams]
    cache = PieceCache(root, max_bytes=max_bytes)
    uvloop.run(_run_relay(cache, servers, settings, host=host, port=port, limits=limits))


async def _run_relay(
    cache: PieceCache,
    upstreams: Sequence[Upstream],
    settings: RelaySettings | None,
    *,
    host: str,
    port: int,
    limits: RateLimits | None,
) -> None:
    stop, relay = asyncio.Event(), Relay(cache, upstreams, settings)

    def log_start() -> None:
        names = [upstream.url for upstream in upstreams]
        get_logger().info("relay serves policies", url=f"http://{host}:{port}", upstreams=names)

    _start_check(cache.verify_all)
    relay.start()
    try:
        with stop_signals(stop):
            server = PieceServer(relay, limits)
            await serve_http(server, host=host, port=port, stop=stop, on_bound=log_start, limits=_CONNECTIONS)
    finally:
        await relay.close()


def build_limits(requests_per_s: float, megabytes_per_s: float | None) -> RateLimits:
    """Return the limits of one client. After a pause it may send the requests of four seconds in a burst."""
    bytes_per_s = None if megabytes_per_s is None else megabytes_per_s * 1e6
    return RateLimits(requests_per_s=requests_per_s, burst=4 * requests_per_s, bytes_per_s=bytes_per_s)


def _start_check(verify_all: Callable[[], int]) -> None:
    """Verify all files in a daemon thread, so that the process can end before the thread does."""

    def check() -> None:
        try:
            damaged = verify_all()
        except OSError as error:
            get_logger().warning("not all files were verified", reason=str(error))
            return
        get_logger().info("files verified", damaged=damaged)

    threading.Thread(target=check, name="verify-pieces", daemon=True).start()
