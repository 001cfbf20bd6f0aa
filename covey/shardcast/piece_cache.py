"""The folder of a relay. Everything except heads is named by its hash, and all of it can be deleted at any time.

    pieces/<first two digits>/<hash>    pieces
    manifests/<hash>, records/<hash>    manifests and policy records
    heads/<pool>.json                   the last head of each pool

A file appears by one rename, after its bytes were verified. Except for the folders of digits, the paths are those of
the URLs, so a server of static files can serve the folder as well.
"""

import errno
import heapq
import math
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from prometheus_client.core import Metric

from covey.errors import ProtocolError
from covey.protocol.head import Head, ServedPolicy
from covey.protocol.ids import Hash, is_hash
from covey.protocol.pieces import Octets
from covey.protocol.policy_record import PolicyRecord
from covey.runtime.log import get_logger
from covey.runtime.prometheus import build_gauge
from covey.shardcast.manifest_index import is_transport, read_contents
from covey.shardcast.piece_files import DocumentChecks, Location, PieceChecks, get_stamp
from covey.shardcast.reachability import KEPT_POLICIES, PolicyRetention, retain, select_kept

KEPT_DATASETS = 16
"""Default number of data sets that a relay keeps. The most recently fetched ones stay."""
_MAX_PER_STEP = 2
SPARE_BYTES = 4 << 30
"""Default maximum total size in bytes of spare pieces, which no kept manifest lists. The newest ones stay."""


class PieceCache:
    """Files of a relay. Methods can be called by several threads. Example: `PieceCache(Path("relay")).add_piece(digest,
    data)`.
    """

    def __init__(self, root: Path, *, max_bytes: int | None = None) -> None:
        """`max_bytes` is the maximum total size of the pieces. None means that only the disk limits it."""
        self.root, self.max_bytes = root, max_bytes
        self._pieces, self._heads = root / "pieces", root / "heads"
        self._manifests, self._records = root / "manifests", root / "records"
        for folder in (self._heads, self._manifests, self._records):
            folder.mkdir(parents=True, exist_ok=True)
        for number in range(256):
            (self._pieces / f"{number:02x}").mkdir(parents=True, exist_ok=True)
        self._checks = PieceChecks()
        self._documents = DocumentChecks()
        self._listed: dict[Hash, dict[Hash, int]] = {}
        """Distinct pieces of manifests, in order and with their sizes. It contains the manifests that `list_pieces` has
        read and that were not pruned since.
        """
        self._sizes: dict[Hash, int] = {digest: path.stat().st_size for digest, path in self._iterate_pieces()}
        """Size in bytes of each piece in the folder."""
        self._bytes = sum(self._sizes.values())
        """Total size in bytes of the pieces in the folder and of those that are being written."""
        self._sizing = threading.Lock()
        self._pruning = threading.Lock()
        if max_bytes is not None and self._bytes > max_bytes:
            self.prune()

    def has_piece(self, digest: Hash) -> bool:
        """Return whether the folder has a file for the piece, verified or not."""
        return digest in self._sizes

    def find_checked_piece(self, digest: Hash) -> Location | None:
        """Return the location of a piece that is known to match its hash, or None. Reads no data, so event loops may
        call it.
        """
        if digest not in self._sizes:
            return None
        location = self._locate(digest)
        return location if location is not None and self._checks.get_result(digest, location) else None

    def find_piece(self, digest: Hash, *, verify: bool = False) -> Location | None:
        """Return the location of a piece, or None if it is missing or damaged. Removes a damaged piece.

        Hashes the piece if `verify` is True, or if it was not hashed since its file last changed.
        """
        location = self._locate(digest)
        if location is None:
            self._forget_size(digest)
            return None
        result = None if verify else self._checks.get_result(digest, location)
        if result is None:
            result = self._checks.check(digest, location)
        if not result:
            get_logger().warning("damaged piece is removed and will be fetched again", path=str(location.path))
            self._remove_piece(digest)
            return None
        return location

    def add_piece(self, digest: Hash, data: Octets) -> Location:
        """Store verified bytes, and return their location.

        Raises OSError if that fails or if the pieces would exceed `max_bytes`.
        """
        path, size = self._get_piece_path(digest), len(data)
        with self._sizing:
            if self.max_bytes is not None and self._bytes + size > self.max_bytes:
                raise OSError(errno.EDQUOT, f"the pieces would exceed the limit of {self.max_bytes} bytes")
            self._bytes += size
        try:
            _write(path, data)
            location = Location(path, 0, size, get_stamp(path))
        except OSError:
            with self._sizing:
                self._bytes -= size
            raise
        self._checks.record(digest, location, is_sound=True)
        with self._sizing:
            self._bytes -= self._sizes.get(digest, 0)  # The new file may have replaced an old one.
            self._sizes[digest] = size
        return location

    def find_record(self, record: Hash, *, verify: bool = False) -> bytes | None:
        """Return the bytes of a record, or None if it is missing or damaged. Checks its hash like `find_piece`."""
        return self._find_document(self._records / record, record, PolicyRecord.from_bytes, verify=verify)

    def add_record(self, record: Hash, data: bytes) -> None:
        """Store a verified record. Raises OSError if that fails."""
        _write(self._records / record, data)

    def find_manifest(self, address: Hash, *, verify: bool = False) -> bytes | None:
        """Return the bytes of a manifest, or None if it is missing or damaged. Checks its hash like `find_piece`."""
        return self._find_document(self._manifests / address, address, read_contents, verify=verify)

    def add_manifest(self, address: Hash, data: bytes) -> None:
        """Store a verified manifest. Raises OSError if that fails."""
        _write(self._manifests / address, data)

    def list_pieces(self, address: Hash) -> Mapping[Hash, int] | None:
        """Return the distinct pieces of a manifest in order, with their sizes, or None if the manifest is missing."""
        if address not in self._listed:
            data = self.find_manifest(address)
            if data is None:
                return None
            contents = read_contents(data, address)
            self._listed[address] = {piece.digest: piece.size for each in contents for piece in each.pieces}
        return self._listed[address]

    def is_listed(self, digest: Hash) -> bool:
        """Return whether a kept manifest lists the piece."""
        return any(digest in pieces for pieces in tuple(self._listed.values()))

    def find_head(self, pool: int) -> bytes | None:
        """Return the bytes of the last head of a pool, or None if it is missing or damaged."""
        try:
            data = (self._heads / f"{pool}.json").read_bytes()
            Head.from_bytes(data)
        except (FileNotFoundError, ProtocolError):
            return None
        return data

    def add_head(self, pool: int, data: bytes) -> None:
        """Store the head of a pool. Raises OSError if that fails."""
        _write(self._heads / f"{pool}.json", data)

    def list_pools(self) -> list[int]:
        """Return the pools that have a stored head."""
        return sorted(int(path.stem) for path in self._heads.glob("*.json") if path.stem.isdecimal())

    def prune(
        self,
        heads: Sequence[Head] | None = None,
        *,
        keep: int = KEPT_POLICIES,
        keep_datasets: int = KEPT_DATASETS,
        spare_bytes: int = SPARE_BYTES,
        spare_share: float = 1.0,
    ) -> None:
        """Remove what neither the newest `keep` policies of each head nor the last `keep_datasets` data sets need.

        `heads` has the heads of all pools, possibly several of one pool. None means the stored heads.

        Pieces that no kept manifest lists are spare. The newest ones stay, up to a total of `spare_bytes` and up to the
        share `spare_share` of their current size. With `max_bytes`, the pieces of the newest policies have priority,
        even if they are not fetched yet, and all heads have equal shares. Pieces that then exceed the limit are
        removed.
        """
        with self._pruning:
            # Files that appear later stay. A name that starts with a dot is a draft that is being written.
            present = [*self._records.glob("[!.]*"), *self._manifests.glob("[!.]*")]
            if heads is None:
                heads = [Head.from_bytes(data) for pool in self.list_pools() if (data := self.find_head(pool))]
            policies, datasets = list_mirrored(heads, keep), self._select_datasets(keep_datasets)
            ways = [way.manifest for policy in policies for way in policy.ways]
            kept = {policy.record for policy in policies}.union(ways, datasets)
            for path in present:
                if path.name not in kept:
                    path.unlink(missing_ok=True)
                    self._documents.forget(path)
            needed, room = self.select_needed(heads, keep)
            for digest, size in self._iterate_listed(datasets):
                if size <= room and digest in self._sizes and digest not in needed:
                    needed.add(digest)
                    room -= size
            for address in self._listed.keys() - kept:
                self._listed.pop(address, None)
            self._prune_pieces(needed, min(spare_bytes, room), spare_share)

    def select_needed(self, heads: Iterable[Head], keep: int) -> tuple[set[Hash], float]:
        """Return the pieces of the newest policies that fit into `max_bytes`, and the remaining bytes.

        The next piece always comes from the head with the fewest bytes so far. So each head has an equal share of the
        limit, and large policies of one head do not displace those of others.
        """
        needed, room = set[Hash](), math.inf if self.max_bytes is None else float(self.max_bytes)
        queue: list[tuple[int, int, Hash, int, Iterator[tuple[Hash, int]]]] = []

        def push_next(used: int, number: int, pieces: Iterator[tuple[Hash, int]]) -> None:
            for digest, size in pieces:
                if digest not in needed:
                    heapq.heappush(queue, (used + size, number, digest, size, pieces))
                    return

        for number, head in enumerate(heads):
            ways = (way.manifest for policy in list_mirrored([head], keep) for way in policy.ways)
            push_next(0, number, self._iterate_listed(ways))
        while queue:
            used, number, digest, size, pieces = heapq.heappop(queue)
            if digest in needed:
                push_next(used - size, number, pieces)
            elif size <= room:
                needed.add(digest)
                room -= size
                push_next(used, number, pieces)
        return needed, room

    def verify_all(self) -> int:
        """Hash all pieces, manifests and records, and remove the damaged ones. Returns the number of damaged pieces."""
        digests = list(self._sizes)
        damaged = sum(self.find_piece(digest) is None and not self.has_piece(digest) for digest in digests)
        for path in self._manifests.glob("[!.]*"):
            self.find_manifest(Hash(path.name))
        for path in self._records.glob("[!.]*"):
            self.find_record(Hash(path.name))
        return damaged

    def describe(self) -> dict[str, object]:
        """Return values for operators: the number of pieces, their total size and its limit."""
        return {"pieces": len(self._sizes), "bytes_on_disk": self._bytes, "max_bytes": self.max_bytes}

    def read_metrics(self) -> Iterable[Metric]:
        """Return the total size of the pieces, and its limit if there is one."""
        yield build_gauge("covey_disk_bytes", "Total size of the pieces on disk.", self._bytes)
        if self.max_bytes is not None:
            yield build_gauge("covey_disk_limit_bytes", "Maximum total size of the pieces on disk.", self.max_bytes)

    def _select_datasets(self, keep: int) -> list[Hash]:
        """Return the manifests of the most recently fetched data sets, the newest first."""
        paths = sorted(self._manifests.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        return [Hash(path.name) for path in paths if is_hash(path.name) and not is_transport(path)][:keep]

    def _iterate_listed(self, manifests: Iterable[Hash]) -> Iterator[tuple[Hash, int]]:
        """Yield the pieces, with their sizes, of those manifests that are in the folder."""
        for address in manifests:
            yield from (self.list_pieces(address) or {}).items()

    def _prune_pieces(self, needed: Collection[Hash], spare_bytes: float, spare_share: float) -> None:
        others = []
        for digest in set(self._sizes).difference(needed):
            location = self._locate(digest)
            if location is not None:
                others.append((location.stamp.changed_ns, digest, location.size))
        spare_bytes = min(spare_bytes, spare_share * sum(size for _, _, size in others))
        for _, digest, size in sorted(others, reverse=True):
            if size > spare_bytes:
                self._remove_piece(digest)
            else:
                spare_bytes -= size

    def _remove_piece(self, digest: Hash) -> None:
        path = self._get_piece_path(digest)
        path.unlink(missing_ok=True)
        self._checks.forget(path)
        self._forget_size(digest)

    def _forget_size(self, digest: Hash) -> None:
        with self._sizing:
            self._bytes -= self._sizes.pop(digest, 0)

    def _find_document(
        self, path: Path, address: Hash, parse: Callable[[bytes, Hash], object], *, verify: bool
    ) -> bytes | None:
        try:
            return self._documents.read(path, address, parse, verify=verify)
        except ProtocolError:
            get_logger().warning("damaged file is removed and will be fetched again", path=str(path))
            path.unlink(missing_ok=True)
            return None

    def _locate(self, digest: Hash) -> Location | None:
        path = self._get_piece_path(digest)
        try:
            stamp = get_stamp(path)
        except FileNotFoundError:
            return None
        return Location(path, 0, stamp.size, stamp)

    def _get_piece_path(self, digest: Hash) -> Path:
        return self._pieces / digest[2:4] / digest

    def _iterate_pieces(self) -> Iterator[tuple[Hash, Path]]:
        """Yield all pieces, and remove drafts that an ended process has left."""
        for path in self._pieces.glob("*/*"):
            if is_hash(path.name):
                yield Hash(path.name), path
            else:
                path.unlink(missing_ok=True)


def list_mirrored(heads: Iterable[Head], keep: int) -> list[ServedPolicy]:
    """Return the policies that a relay mirrors, in this order. Each has its smallest ways first.

    The newest policy of each pool comes first, then the second newest, and so on. So no pool displaces the others.
    """
    ranks = zip_longest(*(select_mirrored(head, keep).policies for head in heads))
    policies = [policy for rank in ranks for policy in rank if policy is not None]
    return [
        policy.model_copy(update={"ways": tuple(sorted(policy.ways, key=lambda way: way.size))}) for policy in policies
    ]


def select_mirrored(head: Head, keep: int) -> Head:
    """Return the part of a head that a relay mirrors: the newest `keep` policies and what they need.

    A step has at most two policies, which a reorganization of the chain can cause. So an upstream cannot fill the disk
    with policies of one step.
    """
    counts: Counter[int] = Counter()
    policies = []
    for policy in head.policies:
        counts[policy.step] += 1
        if counts[policy.step] <= _MAX_PER_STEP:
            policies.append(policy)
    head = head.model_copy(update={"policies": tuple(policies)})
    return retain(head, select_kept(head, PolicyRetention(keep=keep), stored_at={}, now=0.0))


def _write(path: Path, data: Octets) -> None:
    """Write a file and rename it into place. It is not synced, because the next start verifies all files."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
