"""A folder of manifests and shards: what origin and relays serve.  Shards are named by their hash, so nothing in it
can be confused with anything else; a manifest is written last, so that whoever sees it can have all of it.
"""

import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from covey.files import write_atomically
from covey.protocol.ids import Hash
from covey.protocol.manifest import SHARD_BYTES, File, Manifest, Shard

KEPT_POLICIES = 5
"""Newest policies that stay by default."""
_MANIFEST_NAME = re.compile(r"^(\d{1,19})\.json$")
_PIECE = 1 << 20


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
    """Layout: `shards/<sha256>`, `policies/<pool>/<step>.json`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._named: dict[tuple[Path, int], frozenset[Hash]] = {}
        """Shards of each manifest, by its path and the time of its last change."""
        (root / "shards").mkdir(parents=True, exist_ok=True)
        (root / "policies").mkdir(exist_ok=True)

    def get_shard_path(self, sha256: Hash) -> Path:
        return self.root / "shards" / sha256

    def get_manifest_path(self, pool: int, step: int) -> Path:
        return self.root / "policies" / str(pool) / f"{step}.json"

    def list_steps(self, pool: int) -> list[int]:
        """Steps whose manifest is here, ascending."""
        folder = self.root / "policies" / str(pool)
        names = [_MANIFEST_NAME.match(path.name) for path in folder.glob("*.json")]
        return sorted(int(name[1]) for name in names if name)

    def add_manifest(self, manifest: Manifest) -> None:
        """Write a manifest whose shards are, or will be, here."""
        path = self.get_manifest_path(manifest.pool, manifest.step)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, manifest.to_bytes())

    def prune(self, pool: int, retention: Retention, *, now: float | None = None) -> None:
        """Forget the policies of a pool that need not stay, and the shards that no manifest names any more.

        `now`: Unix seconds of the clock that stamps files.
        """
        steps, now = self.list_steps(pool), time.time() if now is None else now
        older = steps[: max(0, len(steps) - retention.keep)]
        for step, newer in zip(older, steps[retention.lifetime :], strict=False):
            unused_since = self.get_manifest_path(pool, newer).stat().st_mtime
            if not retention.seconds or now - unused_since >= retention.seconds:
                self.get_manifest_path(pool, step).unlink(missing_ok=True)
        named = self._list_named()
        for path in (self.root / "shards").iterdir():
            if path.name.startswith("0x") and path.name not in named:
                path.unlink(missing_ok=True)

    def _list_named(self) -> set[Hash]:
        """Shards of all manifests; each is parsed once, for there may be thousands."""
        named: dict[tuple[Path, int], frozenset[Hash]] = {}
        for path in (self.root / "policies").glob("*/*.json"):
            key = (path, path.stat().st_mtime_ns)
            named[key] = self._named[key] if key in self._named else _read_shards(path)
        self._named = named
        return set().union(*named.values())


def _read_shards(path: Path) -> frozenset[Hash]:
    manifest = Manifest.model_validate_json(path.read_bytes())
    return frozenset(shard.sha256 for file in manifest.files for shard in file.shards)


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
            target = store.get_shard_path(shard.sha256)
            if not target.exists():
                write_atomically(target, piece)
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
