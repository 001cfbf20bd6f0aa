"""The folder that a trainer writes and an origin serves.

    heads/<pool>.json               the policies of a pool
    records/<hash>.json             policy records
    manifests/<address>             transport manifests and manifests of data sets
    objects/<address>/<object>      bytes of a manifest's objects, in some files after a safetensors header
    objects/<address>/.offered      stamps of the objects that the offering process has hashed

Objects are hard links to the trainer's files where possible. A manifest is written after its objects, and a head after
its manifests. Items are removed in the opposite order, from the head first.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from covey.errors import OperatorError, ProtocolError
from covey.protocol.head import Head, ServedPolicy, Way, build_head
from covey.protocol.ids import Hash, is_hash
from covey.protocol.policy_record import PolicyRecord
from covey.protocol.transport import TransportManifest
from covey.runtime.files import sync, write_atomically
from covey.runtime.log import get_logger
from covey.shardcast.manifest_index import ManifestIndex, ObjectContents, PiecePlace, is_transport, read_contents
from covey.shardcast.piece_files import DocumentChecks, FileStamp, Location, PieceChecks, get_stamp
from covey.shardcast.reachability import PolicyRetention, retain, select_kept

_OFFERED = ".offered"
_ORPHAN_SECONDS = 3600.0
"""Age in seconds at which an item that no head names is removed, because its trainer did not finish."""


class OriginStore:
    """Folder of an origin. One process per pool writes, and any number of processes read.

    Example: `OriginStore(Path("origin")).add_manifest(manifest, {"weights": Path("export/model.safetensors")})`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._heads, self._records = root / "heads", root / "records"
        self._manifests, self._objects = root / "manifests", root / "objects"
        for folder in (self._heads, self._records, self._manifests, self._objects):
            folder.mkdir(parents=True, exist_ok=True)
        self._index = ManifestIndex(self._manifests, self._objects)
        self._checks = PieceChecks()
        self._documents = DocumentChecks()
        self._sound: dict[Path, FileStamp] = {}
        """Stamps of objects whose pieces are all known to match their hashes."""
        self._offered: dict[Path, FileStamp] = {}
        """Stamps of objects that the offering process has hashed."""
        self._pools: dict[str, int] = {}
        """Pools of the records that this process has read, by file name."""

    def add_record(self, record: PolicyRecord) -> None:
        """Write a record, unless an intact copy exists. The file's modification time is the time of storing."""
        address = record.compute_hash()
        if self.find_record(address, verify=True) is None:
            write_atomically(self._records / f"{address}.json", record.to_bytes())

    def add_manifest(
        self, manifest: TransportManifest, files: Mapping[str, Path], *, known: Collection[str] = ()
    ) -> None:
        """Add a transport manifest with the files of its objects. Replace existing objects that are damaged.

        A file ends with the bytes of its object. `known` has the names of objects whose files this process has hashed.
        They are not hashed again until a client requests verification. Raises OperatorError("damaged_object") if an
        existing object is damaged and the offered file does not replace it.
        """
        contents = tuple(ObjectContents(each.name, each.pieces) for each in manifest.objects)
        self.add_contents(manifest.address, manifest.to_bytes(), contents, files=files)
        folder = self._objects / manifest.address
        for name in known:
            if get_stamp(folder / name) == get_stamp(files[name]):  # A hard link has the same stamp.
                self._sound[folder / name] = get_stamp(folder / name)
        hashed = {each.name: self._sound.get(folder / each.name) for each in contents}
        write_atomically(folder / _OFFERED, json.dumps(hashed).encode())

    def add_contents(
        self, address: Hash, data: bytes, contents: tuple[ObjectContents, ...], *, files: Mapping[str, Path]
    ) -> None:
        """Add a manifest of any kind, as `add_manifest` does. `data` contains its bytes."""
        folder = self._objects / address
        is_new = not folder.exists()
        folder.mkdir(exist_ok=True)
        for each in contents:
            path = folder / each.name
            if is_new or not self._hash_object(path, each):
                if not is_new and path.exists():
                    get_logger().warning("damaged object is replaced", path=str(path))
                self._link(files.get(each.name), path, each)
                if not is_new and not self._hash_object(path, each):
                    raise _build_damaged(path)
        sync(folder)
        target = self._manifests / address
        if not target.exists() or target.read_bytes() != data:
            write_atomically(target, data)

    def find_objects(self, address: Hash) -> Path | None:
        """Return the folder with the objects of a manifest, or None if it does not exist."""
        folder = self._objects / address
        return folder if folder.is_dir() else None

    def is_sound(self, address: Hash) -> bool:
        """Return whether all objects of a manifest match their hashes. Hashes only objects that are new or have
        changed.
        """
        data, folder = self.find_manifest(address), self._objects / address
        return data is not None and all(
            self._is_object_sound(folder / each.name, each) for each in read_contents(data, address)
        )

    def _is_object_sound(self, path: Path, contents: ObjectContents) -> bool:
        return path.exists() and (self._sound.get(path) == get_stamp(path) or self._hash_object(path, contents))

    def write_head(self, pool: int, head: Head) -> None:
        """Replace the head of a pool."""
        if head.pool != pool:
            raise ValueError(f"the head belongs to pool {head.pool}, not {pool}")
        write_atomically(self._heads / f"{pool}.json", head.to_bytes())

    def read_head(self, pool: int) -> Head | None:
        """Return the head of a pool, or None if there is none. Raises ProtocolError("bad_head") if it is damaged."""
        data = self.find_head(pool)
        return None if data is None else Head.from_bytes(data)

    def rebuild_head(self, pool: int) -> Head:
        """Return the head that follows from the records and manifests in this folder. Writes nothing."""
        ways: dict[Hash, list[Way]] = {}
        for path in sorted(self._manifests.iterdir()):
            data = self.find_manifest(Hash(path.name)) if is_hash(path.name) and is_transport(path) else None
            if data is not None:
                manifest = TransportManifest.from_bytes(data, Hash(path.name))
                way = Way(manifest=manifest.address, base=manifest.base, size=manifest.size)
                ways.setdefault(manifest.record, []).append(way)
        policies = []
        for path in sorted(self._records.glob("0x*.json")):
            address = Hash(path.stem)
            data = self.find_record(address)
            if data is not None and address in ways:
                record = PolicyRecord.from_bytes(data, address)
                if record.pool == pool:
                    policies.append(ServedPolicy(step=record.step, record=address, ways=tuple(ways[address])))
        return build_head(pool, policies)

    def find_head(self, pool: int) -> bytes | None:
        """Return the bytes of a pool's head, or None if there is none."""
        return _read(self._heads / f"{pool}.json")

    def find_record(self, record: Hash, *, verify: bool = False) -> bytes | None:
        """Return the bytes of a record, or None if it is missing or damaged.

        Checks the hash if `verify` is True, or if it was not checked since the file last changed.
        """
        return self._find_document(self._records / f"{record}.json", record, PolicyRecord.from_bytes, verify=verify)

    def find_manifest(self, address: Hash, *, verify: bool = False) -> bytes | None:
        """Return the bytes of a manifest, or None if it is missing or damaged. Checks the hash like `find_record`."""
        return self._find_document(self._manifests / address, address, read_contents, verify=verify)

    def has_document(self, address: Hash) -> bool:
        """Return whether the folder has a record or manifest with this hash, damaged or not."""
        return (self._records / f"{address}.json").exists() or (self._manifests / address).exists()

    def find_checked_piece(self, digest: Hash) -> Location | None:
        """Return the location of a piece that is known to match its hash, or None. Reads no data, so event loops may
        call it.
        """
        for place in self._index.find(digest):
            location = _locate(place)
            if location is not None and self._checks.get_result(digest, location):
                return location
        return None

    def find_piece(self, digest: Hash, *, verify: bool = False) -> Location | None:
        """Return the location of a piece, or None if it is missing or damaged.

        Hashes the piece if `verify` is True, or if it was not hashed since its file last changed.
        """
        found = self._find_sound(digest, verify=verify)
        if found is None:
            self._refresh()
            found = self._find_sound(digest, verify=verify)
        return found

    def is_listed(self, digest: Hash) -> bool:
        """Return whether a manifest in this folder lists the piece."""
        return bool(self._index.find(digest))

    def describe(self) -> dict[str, object]:
        """Return values for operators: the number of known pieces, the total size of objects and the newest steps."""
        pools: dict[str, int | None] = {}
        for path in self._heads.glob("*.json"):
            try:
                policies = Head.from_bytes(path.read_bytes()).policies
            except ProtocolError:
                policies = ()
            pools[path.stem] = max((policy.step for policy in policies), default=None)
        size = sum(path.stat().st_size for path in self._objects.glob("*/[!.]*"))
        return {"pieces": len(self._index), "bytes_on_disk": size, "newest_steps": pools}

    def verify_all(self) -> int:
        """Hash every piece of every object. Returns the number of damaged pieces, which are no longer served."""
        self._refresh()
        damaged = 0
        for digest, place in self._index.iterate():
            location = _locate(place)
            if location is not None and not self._has_hash(digest, location, verify=True):
                damaged += 1
        return damaged

    def prune(self, pool: int, retention: PolicyRetention, now: float | None = None) -> None:
        """Remove the policies of a pool that `retention` does not keep, and the items that only they need.

        `now` is a Unix time. None means the current time. Does nothing if the pool's head is missing or damaged.
        """
        now = time.time() if now is None else now
        try:
            head = self.read_head(pool)
        except ProtocolError as error:
            fix = "The trainer replaces it with its next policy"
            get_logger().warning("nothing is pruned", pool=pool, reason=error.message, fix=fix)
            return
        if head is None:
            return
        kept = select_kept(head, retention, stored_at=self._list_times(head), now=now)
        smaller = retain(head, kept)
        if smaller != head:
            self.write_head(pool, smaller)
        self._remove(_list_names(head) - _list_names(smaller))
        self._remove(self._list_orphans(pool, _list_names(smaller), now))

    def _refresh(self) -> None:
        _forget(self._offered, dropped := self._index.refresh())
        for folder in dropped:
            self._checks.forget_folder(folder)

    def _find_sound(self, digest: Hash, *, verify: bool) -> Location | None:
        for place in self._index.find(digest):
            location = _locate(place)
            if location is not None and self._has_hash(digest, location, verify=verify):
                return location
        return None

    def _find_document(
        self, path: Path, address: Hash, parse: Callable[[bytes, Hash], object], *, verify: bool
    ) -> bytes | None:
        try:
            return self._documents.read(path, address, parse, verify=verify)
        except ProtocolError as error:
            _warn_of_damage(path, error.message)
            return None

    def _list_times(self, head: Head) -> dict[Hash, float]:
        times = {}
        for policy in head.policies:
            path = self._records / f"{policy.record}.json"
            if path.exists():
                times[policy.record] = path.stat().st_mtime
        return times

    def _list_orphans(self, pool: int, named: set[Hash], now: float) -> set[Hash]:
        """Return the orphans of a pool: old records that its head does not name, with their manifests and objects."""
        old = {path for path in self._records.iterdir() if now - path.stat().st_mtime > _ORPHAN_SECONDS}
        records = {Hash(path.stem) for path in old if is_hash(path.stem) and self._get_pool(path) == pool}
        found = records - named
        for path in self._manifests.iterdir():
            if not is_hash(path.name) or path.name in named or now - path.stat().st_mtime <= _ORPHAN_SECONDS:
                continue
            try:
                manifest = TransportManifest.from_bytes(path.read_bytes(), Hash(path.name))
            except ProtocolError:
                continue  # The file is the manifest of a data set, or damaged.
            if manifest.record in records:
                found.add(manifest.address)
        unfinished = (p for p in self._objects.iterdir() if not (self._manifests / p.name).exists())
        return found | {Hash(path.name) for path in unfinished if now - path.stat().st_mtime > _ORPHAN_SECONDS}

    def _get_pool(self, path: Path) -> int | None:
        if path.name not in self._pools:
            data = self.find_record(Hash(path.stem))
            if data is None:
                return None
            self._pools[path.name] = PolicyRecord.from_bytes(data, Hash(path.stem)).pool
        return self._pools[path.name]

    def _remove(self, names: set[Hash]) -> None:
        """Remove records and manifests with these addresses, manifests before their objects."""
        for name in names:
            (self._records / f"{name}.json").unlink(missing_ok=True)
            (self._manifests / name).unlink(missing_ok=True)
            self._documents.forget(self._records / f"{name}.json")
            self._documents.forget(self._manifests / name)
            shutil.rmtree(self._objects / name, ignore_errors=True)
        _forget(self._sound, {self._objects / name for name in names})
        _forget(self._offered, {self._objects / name for name in names})

    def _has_hash(self, digest: Hash, location: Location, *, verify: bool) -> bool:
        result = None if verify else self._checks.get_result(digest, location)
        if result is None and not verify and self._is_offered(location):
            result = True
            self._checks.record(digest, location, is_sound=True)
        if result is None:
            result = self._checks.check(digest, location)
            if not result:
                _warn_of_damage(location.path, f"{location.size} bytes at {location.offset} do not match {digest}")
        return result

    def _is_offered(self, location: Location) -> bool:
        """Return whether the file is unchanged since the offering process hashed it.

        Hashing it again would delay the first download. A client that receives wrong bytes requests verification.
        """
        path = location.path
        if path not in self._offered:
            try:
                stamps = json.loads((path.parent / _OFFERED).read_bytes())
                self._offered[path] = FileStamp(*stamps[path.name])
            except (FileNotFoundError, ValueError, LookupError, TypeError):
                return False
        return self._offered[path] == location.stamp

    def _hash_object(self, path: Path, contents: ObjectContents) -> bool:
        """Hash a whole object, and return whether all its pieces match. Remembers a match."""
        self._sound.pop(path, None)
        if not path.exists():
            return False
        stamp, to_end = get_stamp(path), contents.size
        for piece in contents.pieces:
            location = _locate(PiecePlace(path, to_end, piece.size))
            if location is None or location.stamp != stamp or not self._checks.check(piece.digest, location):
                return False
            to_end -= piece.size
        self._sound[path] = stamp
        return True

    def _link(self, source: Path | None, target: Path, contents: ObjectContents) -> None:
        """Make `target` a hard link to `source`, or a copy if they are on different file systems."""
        if source is None:
            raise _build_damaged(target)
        if source.stat().st_size < contents.size:
            raise ValueError(f"{source} has {source.stat().st_size} bytes, but the object has {contents.size}")
        draft = target.with_name(f".{target.name}.draft")
        draft.unlink(missing_ok=True)
        try:
            os.link(source.resolve(), draft)
        except OSError as error:
            get_logger().info("object is copied, because it cannot be linked", path=str(source), reason=error.strerror)
            shutil.copyfile(source, draft)
            sync(draft)
        draft.replace(target)
        draft.unlink(missing_ok=True)  # A rename between two links to the same file does nothing.
        self._checks.forget(target)
        self._sound.pop(target, None)


def _forget(stamps: dict[Path, FileStamp], folders: Collection[Path]) -> None:
    """Remove the stamps of the files in some folders. Other threads may add stamps meanwhile."""
    for path in tuple(stamps):
        if path.parent in folders:
            stamps.pop(path, None)


def _locate(place: PiecePlace) -> Location | None:
    """Return the current location of a place, or None if its file is missing or too short."""
    try:
        stamp = get_stamp(place.path)
    except FileNotFoundError:
        return None
    offset = stamp.size - place.to_end
    return None if offset < 0 else Location(place.path, offset, place.size, stamp)


def _list_names(head: Head) -> set[Hash]:
    """Return the records and manifests that a head names."""
    records = {policy.record for policy in head.policies}
    return records | {way.manifest for policy in head.policies for way in policy.ways}


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _warn_of_damage(path: Path, reason: str) -> None:
    fix = "Restart the trainer, which offers its policies and data sets again and replaces damaged files"
    get_logger().warning("damaged file is not served", path=str(path), reason=reason, fix=fix)


def _build_damaged(path: Path) -> OperatorError:
    return OperatorError(
        "damaged_object",
        f"{path} does not match the hashes in its manifest",
        fix="Export the policy again, or remove it",
    )
