"""The HTTP application of origins and relays: immutable pieces, manifests and records by hash, and heads by pool.

    GET /pieces/<hash>      bytes of a piece; with ?verify=1 they are hashed again before they are sent
    GET /manifests/<hash>   transport manifest, or manifest of a data set
    GET /records/<hash>     policy record
    GET /heads/<pool>.json  head, with an ETag
    GET /previews/<pool>    pieces of the export that is being written
    GET /health, /status    for operators
    GET /metrics            for Prometheus

A piece is sent from its file to the socket without a copy in this process (`covey.runtime.file_sending`). Errors are
JSON with `code` and `message`.
"""

import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client.core import Metric

from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Hash, is_hash
from covey.protocol.pieces import compute_blake3
from covey.runtime import prometheus
from covey.runtime.file_sending import SEND_FILE, FilePart, SendFile
from covey.runtime.log import get_logger
from covey.runtime.rate_limit import ClientLimiter, RateLimits
from covey.shardcast.piece_files import Location, open_piece

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_VERIFY_COST = 20.0
"""Cost of a request with ?verify=1, counted in requests of the rate limit. The server hashes the piece again."""
_HEAD_PATH = re.compile(r"/heads/([1-9][0-9]{0,17})\.json")
_PREVIEW_PATH = re.compile(r"/previews/([1-9][0-9]{0,17})")
_BINARY, _JSON = (b"content-type", b"application/octet-stream"), (b"content-type", b"application/json")
_PROMETHEUS = (b"content-type", prometheus.CONTENT_TYPE.encode())
_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_NO_CACHE = (b"cache-control", b"no-cache")
_NO_STORE = (b"cache-control", b"no-store")


class PieceSource(Protocol):
    """Content that a server serves.

    Methods raise ProtocolError with the HTTP status of the response, or TransientError for status 503.
    """

    async def get_piece(self, digest: Hash, *, verify: bool) -> Location | memoryview:
        """Return a verified piece, in a file or in memory. If `verify` is True, its bytes are hashed again."""

    async def get_manifest(self, address: Hash, *, verify: bool) -> bytes:
        """Return the bytes of a manifest."""

    async def get_record(self, record: Hash, *, verify: bool) -> bytes:
        """Return the bytes of a policy record."""

    async def get_preview(self, pool: int) -> bytes:
        """Return the rows of the preview of a pool's export."""

    async def get_head(self, pool: int) -> bytes:
        """Return the bytes of a pool's head."""

    def describe(self) -> Mapping[str, object]:
        """Return values for operators that can be encoded as JSON."""

    def read_metrics(self) -> Iterable[Metric]:
        """Return metrics of the source. Those of the server are added."""


@dataclass(slots=True)
class ServerMetrics:
    """Counters of a server since its start."""

    started_at: float = field(default_factory=time.time)
    """Unix time at which the server started."""
    requests: int = 0
    succeeded: int = 0
    refused: int = 0
    """Number of requests that exceeded the rate limits or were not GET."""
    missing: int = 0
    """Number of requests for items that neither this server nor an upstream has."""
    failed: int = 0
    """Number of requests that this server temporarily could not answer."""
    pieces: int = 0
    """Number of pieces sent."""
    bytes_sent: int = 0
    """Total size in bytes of the bodies of successful responses."""

    def read(self) -> Iterable[Metric]:
        """Return the counters as Prometheus metrics."""
        outcomes = {"ok": self.succeeded, "refused": self.refused, "missing": self.missing, "failed": self.failed}
        yield prometheus.build_counter("covey_requests", "Requests by outcome.", outcomes, label="outcome")
        yield prometheus.build_counter(
            "covey_sent_bytes", "Bytes of the bodies of successful responses.", self.bytes_sent
        )
        yield prometheus.build_counter("covey_sent_pieces", "Pieces sent.", self.pieces)


class PieceServer:
    """ASGI application that serves a `PieceSource`."""

    def __init__(
        self, source: PieceSource, limits: RateLimits | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source, self._clock = source, clock
        self._limiter = ClientLimiter(limits or RateLimits())
        self.metrics = ServerMetrics()
        self._registry = prometheus.build_registry()
        self._registry.register(prometheus.ReadOnRequest(self.metrics.read))
        self._registry.register(prometheus.ReadOnRequest(source.read_metrics))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.metrics.requests += 1
        try:
            await self._answer(scope, send)
        except ProtocolError as error:
            if error.status == 404:
                self.metrics.missing += 1
            else:
                self.metrics.failed += 1
            await _send_error(send, error.status, error.code, error.message)
        except TransientError as error:
            self.metrics.failed += 1
            # The message may name an upstream, which only the operator should know.
            get_logger().info("cannot serve now", path=scope["path"], code=error.code, reason=error.message)
            await _send_error(send, 503, error.code, "the item is not available now. Repeat the request")
        except OSError as error:
            self.metrics.failed += 1
            get_logger().warning("cannot serve", path=scope["path"], reason=str(error))
            await _send_error(send, 503, "unavailable", f"the server cannot read the item now: {error.strerror}")

    async def _answer(self, scope: Scope, send: Send) -> None:
        if scope["method"] != "GET":
            self.metrics.refused += 1
            await _send_error(send, 405, "bad_method", "only GET is allowed", [(b"allow", b"GET")])
            return
        verify = scope["query_string"] == b"verify=1"
        wait_s = self._limiter.take_request(_get_client(scope), _VERIFY_COST if verify else 1.0, now=self._clock())
        if wait_s:
            await self._refuse(send, wait_s)
            return
        path: str = scope["path"]
        folder, _, name = path[1:].partition("/")
        if folder == "pieces" and is_hash(name):
            await self._send_piece(Hash(name), scope, send, verify=verify)
        elif folder == "manifests" and is_hash(name):
            manifest = await self._source.get_manifest(Hash(name), verify=verify)
            await self._send(send, manifest, [_BINARY, _FOREVER])
        elif folder == "records" and is_hash(name):
            record = await self._source.get_record(Hash(name), verify=verify)
            await self._send(send, record, [_JSON, _FOREVER])
        elif match := _HEAD_PATH.fullmatch(path):
            await self._send_head(int(match[1]), scope, send)
        elif match := _PREVIEW_PATH.fullmatch(path):
            await self._send(send, await self._source.get_preview(int(match[1])), [_BINARY, _NO_STORE])
        elif path in ("/health", "/status"):
            body = {"status": "ok"} if path == "/health" else self._describe()
            await self._send(send, json.dumps(body).encode(), [_JSON, _NO_STORE])
        elif path == "/metrics":
            await self._send(send, prometheus.render(self._registry), [_PROMETHEUS, _NO_STORE])
        else:
            raise ProtocolError("not_found", "the server has no such path", status=404)

    async def _send_piece(self, digest: Hash, scope: Scope, send: Send, *, verify: bool) -> None:
        piece = await self._open_piece(digest, verify=verify) or await self._open_piece(digest, verify=False)
        if piece is None:
            raise TransientError("changed", f"the file of the piece {digest} is being replaced. Request it again")
        size = piece.size if isinstance(piece, FilePart) else len(piece)
        try:
            wait_s = self._limiter.take_bytes(_get_client(scope), size, now=self._clock())
            if wait_s:
                await self._refuse(send, wait_s)
                return
            caching = _NO_STORE if verify else _FOREVER  # A cache must not answer a request to verify.
            await _start(send, 200, [_BINARY, caching, _length(size)])
            if isinstance(piece, FilePart):
                is_sent = await self._send_part(piece, scope)
            else:
                await send({"type": "http.response.body", "body": piece})
                is_sent = True
        finally:
            if isinstance(piece, FilePart):
                os.close(piece.descriptor)
        if is_sent:
            self.metrics.pieces += 1
            self.metrics.succeeded += 1
            self.metrics.bytes_sent += size
        else:
            self.metrics.failed += 1

    async def _open_piece(self, digest: Hash, *, verify: bool) -> FilePart | memoryview | None:
        """Return the bytes of a piece, or None if its file was replaced or removed after the lookup."""
        piece = await self._source.get_piece(digest, verify=verify)
        if not isinstance(piece, Location):
            return piece
        descriptor = open_piece(piece)
        return None if descriptor is None else FilePart(descriptor, piece.offset, piece.size)

    async def _send_part(self, part: FilePart, scope: Scope) -> bool:
        """Send a piece after the headers of its response. Returns whether the whole piece was sent."""
        send_file: SendFile = scope["extensions"][SEND_FILE]
        try:
            return await send_file(part)
        except OSError as error:  # The response has begun, so the connection is closed.
            get_logger().warning("cannot read a piece", path=scope["path"], reason=str(error))
            return False

    async def _send_head(self, pool: int, scope: Scope, send: Send) -> None:
        data = await self._source.get_head(pool)
        tag = (b"etag", compute_etag(data).encode())
        if (b"if-none-match", tag[1]) in scope["headers"]:
            await _start(send, 304, [tag, _NO_CACHE])
            await send({"type": "http.response.body", "body": b""})
            self.metrics.succeeded += 1
            return
        await self._send(send, data, [_JSON, _NO_CACHE, tag])

    async def _send(self, send: Send, data: bytes, headers: Headers) -> None:
        await _start(send, 200, [*headers, _length(len(data))])
        await send({"type": "http.response.body", "body": data})
        self.metrics.succeeded += 1
        self.metrics.bytes_sent += len(data)

    async def _refuse(self, send: Send, wait_s: float) -> None:
        self.metrics.refused += 1
        retry = (b"retry-after", str(int(wait_s) + 1).encode())
        message = f"this address sends too many requests. Wait {wait_s:.1f} seconds"
        await _send_error(send, 429, "rate_limited", message, [retry])

    def _describe(self) -> dict[str, object]:
        return {
            **self._source.describe(),
            "uptime_s": round(time.time() - self.metrics.started_at, 1),
            "requests": self.metrics.requests,
            "refused": self.metrics.refused,
            "pieces_sent": self.metrics.pieces,
            "bytes_sent": self.metrics.bytes_sent,
        }


def compute_etag(data: bytes) -> str:
    """Return the ETag of a head, including the quotes."""
    return f'"{compute_blake3(data)[2:34]}"'


def _length(size: int) -> tuple[bytes, bytes]:
    return b"content-length", str(size).encode()


def _get_client(scope: Scope) -> str:
    """Return the address of the client that sent a request."""
    address: str = (scope.get("client") or ("", 0))[0]
    return address


async def _start(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_error(send: Send, status: int, code: str, message: str, headers: Headers | None = None) -> None:
    body = json.dumps({"code": code, "message": message}).encode()
    await _start(send, status, [_JSON, _NO_STORE, _length(len(body)), *(headers or [])])
    await send({"type": "http.response.body", "body": body})
