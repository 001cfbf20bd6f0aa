"""A folder of manifests and shards: what origin and relays serve.

Shards and manifests are named by their hash, so nothing in it can be confused with anything else.  A manifest is
written last, so that whoever sees it can have all of it.  A copy that is found damaged is never handed out: manifests
are hashed at each look, shards at a process's first look, at an offer, and when the size or time of their file differs.
"""

import hashlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from covey.errors import ProtocolError, TransientError
from covey.protocol import canonical
from covey.protocol.ids import Hash
from covey.protocol.manifest import (
    SHARD_BYTES,
    DatasetManifest,
    File,
    Manifest,
    ManifestName,
    Shard,
)
from covey.runtime.files import write_atomically
from covey.runtime.log import get_logger

KEPT_POLICIES = 5
"""Newest policies that stay by default."""
KEPT_DATASETS = 16
"""Data sets that a relay keeps by default.  A pool has one or a few, and they do not change."""
_PIECE = 1 << 20
_REMEMBERED_SHARDS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which policies of a pool stay.  Example: Retention(keep=5, seconds=93_600, lifetime=3)."""

    keep: int = KEPT_POLICIES
    """Newest policies that stay, whatever their age."""
    seconds: float = 0.0
    """Seconds for which an older policy stays after it was used for the last time."""
    lifetime: int = 0
    """Steps after which a policy is used no more. The time of its end is when the policy that is that many steps newer
    was stored."""


class ShardStore:
    """Layout: `shards/<sha256>`, `policies/<pool>/<step>/<manifest hash>.json`, `datasets/<digest>.json`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._named: dict[tuple[Path, int], frozenset[Hash]] = {}
        """Shards of each manifest, by its path and the time of its last change."""
        self._whole: dict[Hash, tuple[int, int]] = {}
        """Size and time of each shard's file when its bytes had its hash."""
        (root / "shards").mkdir(parents=True, exist_ok=True)
        (root / "policies").mkdir(exist_ok=True)

    def get_shard_path(self, sha256: Hash) -> Path:
        return self.root / "shards" / sha256

    def get_manifest_path(self, name: ManifestName) -> Path:
        return self.root / f"{name.path.removeprefix('/')}.json"

    def list_steps(self, pool: int) -> list[int]:
        """Steps of which a manifest is here, ascending."""
        paths = (self.root / "policies" / str(pool)).glob("*/*.json")
        return sorted({int(path.parent.name) for path in paths if path.parent.name.isdecimal()})

    def find_manifest(self, name: ManifestName) -> bytes | None:
        """The manifest's bytes, or None if it is not here; raise TransientError("damaged_copy") if it lost its hash."""
        path = self.get_manifest_path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if canonical.sha256(data) != name.manifest_hash:
            raise _build_damaged(path)
        return data

    def add_manifest(self, manifest: Manifest | DatasetManifest) -> None:
        """Write a manifest whose shards are, or will be, here."""
        path = self.get_manifest_path(manifest.compute_name())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, manifest.to_bytes())

    def find_shard(self, sha256: Hash) -> Path | None:
        """The file of a shard, or None if it is not here; raise TransientError("damaged_copy") if it lost its hash."""
        path = self.get_shard_path(sha256)
        try:
            stamp = _stamp(path)
            if self._whole.get(sha256) != stamp:
                if compute_range_hash(path, 0, stamp[0]) != sha256:
                    raise _build_damaged(path)
                self._remember(sha256, stamp)
        except FileNotFoundError:
            return None
        return path

    def add_shard(self, sha256: Hash, data: bytes) -> None:
        """Write a shard, unless it is here with its hash, whatever was seen of it before."""
        self._whole.pop(sha256, None)
        try:
            is_here = self.find_shard(sha256) is not None
        except TransientError as error:
            get_logger().warning("shard is written again", message=error.message)
            is_here = False
        if not is_here:
            write_atomically(self.get_shard_path(sha256), data)

    def adopt_shard(self, sha256: Hash, draft: Path) -> Path:
        """Move a file whose bytes have just been hashed to its place, and return that."""
        path = self.get_shard_path(sha256)
        draft.replace(path)
        self._remember(sha256, _stamp(path))
        return path

    def prune(self, pool: int, retention: Retention, *, now: float | None = None) -> None:
        """Forget the policies of a pool that need not stay, and the shards that no manifest names any more.

        `now`: Unix seconds of the clock that stamps files.
        """
        steps, now = self.list_steps(pool), time.time() if now is None else now
        older = steps[: max(0, len(steps) - retention.keep)]
        for step, newer in zip(older, steps[retention.lifetime :], strict=False):
            manifests = self._get_step_folder(pool, newer).glob("*.json")
            unused_since = max(path.stat().st_mtime for path in manifests)
            if not retention.seconds or now - unused_since >= retention.seconds:
                shutil.rmtree(self._get_step_folder(pool, step))
        self._remove_unnamed()

    def prune_datasets(self, keep: int) -> None:
        """Forget all but the `keep` data sets that came last, and the shards that no manifest names any more."""
        paths = sorted((self.root / "datasets").glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in paths[keep:]:
            path.unlink(missing_ok=True)
        if paths[keep:]:
            self._remove_unnamed()

    def _remove_unnamed(self) -> None:
        if (named := self._list_named()) is None:
            return
        for path in (self.root / "shards").iterdir():
            if path.name.startswith("0x") and path.name not in named:
                path.unlink(missing_ok=True)
                self._whole.pop(Hash(path.name), None)

    def _get_step_folder(self, pool: int, step: int) -> Path:
        return self.root / "policies" / str(pool) / str(step)

    def _list_named(self) -> set[Hash] | None:
        """Shards of all manifests, None while one is damaged; each is parsed once, for there may be thousands."""
        named: dict[tuple[Path, int], frozenset[Hash]] = {}
        for path in (*self.root.glob("policies/*/*/*.json"), *self.root.glob("datasets/*.json")):
            key = (path, path.stat().st_mtime_ns)
            try:
                named[key] = self._named[key] if key in self._named else _read_shards(path)
            except ProtocolError as error:
                get_logger().warning("no shard is removed: a manifest is damaged", path=str(path), why=error.message)
                return None
        self._named = named
        return set().union(*named.values())

    def _remember(self, sha256: Hash, stamp: tuple[int, int]) -> None:
        if len(self._whole) >= _REMEMBERED_SHARDS:  # another process prunes an origin's folder
            self._whole.clear()
        self._whole[sha256] = stamp


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of the last change, which a write changes."""
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def _build_damaged(path: Path) -> TransientError:
    fix = "A relay fetches it again; an origin gets it again when its trainer starts"
    return TransientError("damaged_copy", f"{path} does not have the hash in its name. {fix}")


def _read_shards(path: Path) -> frozenset[Hash]:
    kind = DatasetManifest if path.parent.name == "datasets" else Manifest
    return frozenset(shard.sha256 for shard in kind.from_bytes(path.read_bytes(), Hash(path.stem)).shards)


def add_policy(store: ShardStore, folder: Path, *, pool: int, step: int, shard_bytes: int = SHARD_BYTES) -> Manifest:
    """Cut the files of `folder` into shards, store them, then the manifest; equal files give equal manifests."""
    manifest = add_shards(store, folder, pool=pool, step=step, shard_bytes=shard_bytes)
    store.add_manifest(manifest)
    return manifest


def add_shards(store: ShardStore, folder: Path, *, pool: int, step: int, shard_bytes: int = SHARD_BYTES) -> Manifest:
    """As `add_policy`, but for the manifest, which is returned and not stored."""
    files = tuple(_add_file(store, path, shard_bytes) for path in sorted(folder.iterdir()) if path.is_file())
    return Manifest(pool=pool, step=step, files=files)


def _add_file(store: ShardStore, path: Path, shard_bytes: int) -> File:
    whole, shards = hashlib.sha256(), []
    with path.open("rb") as file:
        while piece := file.read(shard_bytes):
            whole.update(piece)
            shard = Shard(size=len(piece), sha256=Hash("0x" + hashlib.sha256(piece).hexdigest()))
            store.add_shard(shard.sha256, piece)
            shards.append(shard)
    sha256 = Hash("0x" + whole.hexdigest())
    return File(name=path.name, size=sum(s.size for s in shards), sha256=sha256, shards=tuple(shards))


def compute_range_hash(path: Path, offset: int, size: int) -> Hash:
    """SHA-256 of `size` bytes of a file from `offset` on."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(offset)
        while size > 0 and (piece := file.read(min(size, _PIECE))):
            digest.update(piece)
            size -= len(piece)
    return Hash("0x" + digest.hexdigest())
