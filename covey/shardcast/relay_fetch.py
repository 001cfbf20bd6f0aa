"""Fetches one verified item at a time from a relay's upstreams, in threads, and stores it in the relay's cache."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from covey.errors import ProtocolError, TransientError
from covey.protocol.head import MAX_HEAD_BYTES, Head, get_head_path, get_manifest_path, get_piece_path, get_record_path
from covey.protocol.ids import Hash
from covey.protocol.pieces import PIECE_BYTES, compute_blake3
from covey.protocol.policy_record import MAX_RECORD_BYTES, PolicyRecord
from covey.protocol.preview import MAX_PREVIEW_BYTES, get_preview_path, parse_preview
from covey.protocol.transport import MAX_MANIFEST_BYTES
from covey.runtime.log import get_logger
from covey.shardcast.manifest_index import read_contents
from covey.shardcast.piece_cache import PieceCache, select_mirrored
from covey.shardcast.piece_files import Location
from covey.shardcast.pool_heads import FetchedHead
from covey.shardcast.upstream import Upstream

_WARN_EVERY_SECONDS = 60.0
Stored = TypeVar("Stored")


class RelayFetcher:
    """Blocking methods for a relay's threads.

    All fetching methods raise ProtocolError("not_found") if no upstream has the item, and TransientError if none sends
    it.
    """

    def __init__(
        self,
        cache: PieceCache,
        upstreams: Sequence[Upstream],
        *,
        keep: int,
        make_room: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep` is the number of newest policies that are mirrored. `make_room` is called when an item cannot be
        stored, because the disk is full or the pieces have reached their limit.
        """
        self.cache, self.upstreams, self.keep = cache, tuple(upstreams), keep
        self._make_room, self._clock = make_room, clock
        self._warned_at = float("-inf")
        self._local = threading.local()
        """Buffer for one piece per thread."""
        self.is_full = False
        """Whether an item could not be stored, because the disk is full or the pieces have reached their limit. The
        next piece that is stored clears it.
        """

    def fetch_piece(self, digest: Hash) -> Location | memoryview:
        """Return the location of a fetched piece, or its bytes if it could not be stored."""

        def verify(data: memoryview) -> None:
            if compute_blake3(data) != digest:
                raise ProtocolError("bad_piece", f"the bytes do not match the hash {digest}", status=502)

        if not hasattr(self._local, "buffer"):
            self._local.buffer = memoryview(bytearray(PIECE_BYTES))
        data = self._fetch(get_piece_path(digest), self._local.buffer, verify)
        stored = self._store(lambda: self.cache.add_piece(digest, data))
        if stored is None:
            return memoryview(bytes(data))
        self.is_full = False
        return stored

    def fetch_manifest(self, address: Hash) -> bytes:
        """Fetch and store a manifest, and return its bytes."""
        path = get_manifest_path(address)
        data = bytes(self._fetch(path, MAX_MANIFEST_BYTES, lambda data: read_contents(bytes(data), address)))
        self._store(lambda: self.cache.add_manifest(address, data))
        self.cache.list_pieces(address)  # Its pieces now count as listed.
        return data

    def fetch_record(self, record: Hash) -> bytes:
        """Fetch and store a policy record, and return its bytes."""
        path = get_record_path(record)
        data = bytes(self._fetch(path, MAX_RECORD_BYTES, lambda data: PolicyRecord.from_bytes(bytes(data), record)))
        self._store(lambda: self.cache.add_record(record, data))
        return data

    def fetch_head(self, upstream: Upstream, pool: int, known: FetchedHead | None) -> FetchedHead:
        """Return the current head of a pool at one upstream. Returns `known` if it has not changed."""
        path, etag = get_head_path(pool), None if known is None else known.etag
        reply = upstream.request(path, MAX_HEAD_BYTES, etag=etag)
        if reply.status == 304 and known is not None:
            return known
        if reply.status == 404:
            raise ProtocolError("not_found", f"no upstream has a head of pool {pool}", status=404)
        data = bytes(reply.body)
        try:
            head = Head.from_bytes(data)
            if head.pool != pool:
                raise ProtocolError("bad_head", "the head belongs to another pool", status=502)
        except ProtocolError as error:
            raise self._blame(upstream, path, error) from error
        return FetchedHead(data, reply.etag, select_mirrored(head, self.keep))

    def fetch_preview(self, pool: int) -> bytes:
        """Return the rows of a pool's preview, from the first upstream that has one."""
        return bytes(self._fetch(get_preview_path(pool), MAX_PREVIEW_BYTES, lambda data: parse_preview(bytes(data))))

    def store_head(self, pool: int, data: bytes) -> None:
        """Store the head that the relay serves, unless the disk is full."""
        self._store(lambda: self.cache.add_head(pool, data))

    def report_full(self, reason: str) -> None:
        """Record that an item could not be stored. Logs it at most once per minute."""
        self.is_full = True
        now = self._clock()
        if now - self._warned_at >= _WARN_EVERY_SECONDS:
            self._warned_at = now
            fix = "Free space there, allow more with --max-gigabytes, or keep fewer policies with --keep-policies"
            get_logger().warning(
                "cannot store an item, so it is served from memory", reason=reason, root=str(self.cache.root), fix=fix
            )

    def _fetch(self, path: str, target: memoryview | int, verify: Callable[[memoryview], object]) -> memoryview:
        """Return verified bytes from the first upstream that sends them. `target` is that of `Upstream.request`.

        If an upstream sends wrong bytes, it is asked once more to verify its copy.
        """
        failure: TransientError | None = None
        for upstream in self._order():
            for query in ("", "?verify=1"):
                try:
                    reply = upstream.request(path + query, target)
                    if reply.status == 404:
                        break
                    verify(reply.body)
                    upstream.succeed()
                    return reply.body
                except TransientError as error:
                    failure = error
                    break
                except ProtocolError as error:
                    failure = self._blame(upstream, path, error)
        raise failure or ProtocolError("not_found", f"no upstream has {path}", status=404)

    def _blame(self, upstream: Upstream, path: str, error: ProtocolError) -> TransientError:
        upstream.fail()
        get_logger().warning("upstream sent wrong bytes", upstream=upstream.url, path=path, reason=error.message)
        return TransientError("bad_upstream", f"{upstream.url}{path} has wrong bytes: {error.message}")

    def _order(self) -> list[Upstream]:
        """Return the upstreams, fewest recent failures first, otherwise in the order of the settings."""
        usable = [upstream for upstream in self.upstreams if not upstream.is_paused]
        if not usable:
            raise TransientError("upstream_unreachable", "no upstream answers. Try again in a second")
        return sorted(usable, key=lambda upstream: upstream.failures)

    def _store(self, store: Callable[[], Stored]) -> Stored | None:
        """Store an item, after making room if necessary. Returns None if there is no room."""
        try:
            return store()
        except OSError:
            self._make_room()
        try:
            return store()
        except OSError as error:
            self.report_full(str(error))
            return None
