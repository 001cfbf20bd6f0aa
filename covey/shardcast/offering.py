"""Offers a trainer's policies at its origin: the record, the delta from the previous policy, and occasional anchors.

An anchor contains all weights, so it needs no earlier policy. A repeated offer changes nothing, except that it replaces
damaged files at the origin.
"""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from covey.errors import ProtocolError
from covey.protocol.eip712 import Domain, Signer
from covey.protocol.head import Head, ServedPolicy, Way, build_head
from covey.protocol.ids import ZERO_HASH, Hash, PoolId, Step
from covey.protocol.policy_record import WEIGHTS_FILE, PolicyRecord
from covey.protocol.transport import DELTA, WEIGHTS, TransportManifest
from covey.runtime.log import get_logger
from covey.shardcast.delta.image_codec import encode_image, list_blocks
from covey.shardcast.export_preview import PreviewFolder, PreviewWriter
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.policy_export import ExportChecks, build_anchor, build_delta, build_record
from covey.shardcast.policy_folder import map_weights
from covey.shardcast.reachability import PolicyRetention, find_route

ANCHOR_EVERY = 10
"""Default number of steps between two anchors. A client without any policy downloads an anchor and then the delta from
it to the newest policy.
"""
_WORTHWHILE = 0.5
_SCRATCH = ".delta-"
_SMALL_BYTES = 4096
"""Number of bytes by which a delta may exceed the share _WORTHWHILE of a policy's bytes and still be offered."""


@dataclass(frozen=True, slots=True)
class Export:
    """Policy in a folder of the trainer, with its record."""

    folder: Path
    record: PolicyRecord

    @property
    def trained_at(self) -> float:
        """Unix time at which the export began. It is that of the oldest file."""
        return min(path.stat().st_mtime for path in self.folder.iterdir())


class Offering:
    """Policies of one pool at an origin. Only one thread of one process may use it."""

    def __init__(
        self,
        store: OriginStore,
        *,
        pool: PoolId,
        domain: Domain,
        signer: Signer,
        retention: PolicyRetention,
        anchor_every: int = ANCHOR_EVERY,
        threads: int = 1,
    ) -> None:
        """`domain` contains the address of PolicyRegistry, and `signer` is the key of the pool's trainer.

        `threads` is the number of threads that encode deltas.
        """
        self.store = store
        self.checks = ExportChecks()
        """Exports whose hashes are known. The thread that writes an export records it."""
        self._previews = PreviewFolder(store.root)
        self._pool, self._domain, self._signer = pool, domain, signer
        self._retention, self._anchor_every, self._threads = retention, anchor_every, threads
        for path in store.root.glob(f"{_SCRATCH}*"):  # An ended process may have left them.
            shutil.rmtree(path, ignore_errors=True)

    def describe(self, folder: Path, step: Step, parent: Hash) -> PolicyRecord:
        """Return the record of an exported policy. `parent` is the hash of the record of the previous step."""
        return build_record(folder, pool=self._pool, step=step, parent=parent)

    def find_record_hash(self, step: int) -> Hash | None:
        """Return the hash of the record that the origin offers for a step. Returns None if there is none."""
        return next((each.record for each in self._read_head().policies if each.step == step), None)

    def open_preview(self, step: int, weights: Path) -> PreviewWriter | None:
        """Start to serve the pieces of an export that is being written. `weights` is its weights file.

        Returns None if the policy of `step` will be reached by a delta, which does not contain these pieces. Only the
        thread that writes exports may call this.
        """
        policies = self._read_head().policies
        newest = next((each.step for each in policies if _has_anchor(each)), None)
        if newest is None or step - newest >= self._anchor_every:
            return self._previews.open(self._pool, weights)
        self._previews.remove(self._pool)  # An ended process may have left one.
        return None

    def offer(self, export: Export, base_folder: Path | None) -> None:
        """Add a policy to the origin. First removes policies that are no longer needed.

        `base_folder` is the export of the previous step, which is the base of the delta. None adds an anchor instead.
        """
        started, record = time.monotonic(), export.record
        self.store.prune(self._pool, self._retention)
        self.store.add_record(record)
        base = self._read_record(record.parent)
        if base is not None and base_folder is not None and base.has_same_layout(record):
            if self.checks.is_undamaged(base_folder, threads=self._threads):
                self._add_delta(export, base, base_folder / WEIGHTS_FILE)
            else:  # A delta from damaged weights would be wrong for clients.
                get_logger().warning("no delta is offered: the previous policy is damaged", folder=str(base_folder))
        head, record_hash = self._read_head(), record.compute_hash()
        is_reachable = find_route(head, record_hash) is not None
        is_due = not is_reachable or self._is_anchor_due(_find_last_anchor(head), record.step)
        if is_due or any(each.record == record_hash and _has_anchor(each) for each in head.policies):
            self._add_anchor(export)  # An existing anchor is added again, because it may be damaged.
        self._previews.remove(self._pool, export.folder / WEIGHTS_FILE)
        seconds = round(time.monotonic() - started, 3)
        get_logger().info("policy offered", step=record.step, bytes=record.size, seconds=seconds)

    def add_jump(self, export: Export) -> None:
        """Add a delta from the last anchor to an offered policy, for clients that start with the anchor.

        Does nothing if that delta exists or if the policy itself is an anchor.
        """
        head, record = self._read_head(), export.record
        anchor = _find_last_anchor(head)
        bases = {way.base for each in head.policies if each.record == record.compute_hash() for way in each.ways}
        if bases & {ZERO_HASH, anchor.record}:
            return
        base, address = self._read_record(anchor.record), _get_anchor_address(anchor)
        folder = self.store.find_objects(address)
        is_sound = folder is not None and self.store.is_sound(address)
        if base is not None and folder is not None and is_sound and base.has_same_layout(record):
            self._add_delta(export, base, folder / WEIGHTS)

    def _is_anchor_due(self, last: ServedPolicy, step: int) -> bool:
        """Return whether the policy of `step` should be an anchor.

        A damaged last anchor makes one due immediately. The trainer's export is the same file, so nothing can restore
        the anchor, and no client without a policy could join.
        """
        if step - last.step >= self._anchor_every:
            return True
        if self.store.is_sound(_get_anchor_address(last)):
            return False
        get_logger().warning("the last anchor is damaged, so the next policy is an anchor", anchor=last.step, step=step)
        return True

    def _add_anchor(self, export: Export) -> None:
        manifest = build_anchor(export.folder, export.record).sign(self._domain, self._signer)
        files = {each.name: export.folder / each.name for each in manifest.objects[1:]}
        known = [*files, *([WEIGHTS] if self.checks.is_known(export.folder) else [])]
        self.store.add_manifest(manifest, {WEIGHTS: export.folder / WEIGHTS_FILE, **files}, known=known)
        self._add_to_head(export, manifest)

    def _add_delta(self, export: Export, base: PolicyRecord, base_weights: Path) -> None:
        """Add a delta, unless it is so large that an anchor is as good."""
        record = export.record
        with tempfile.TemporaryDirectory(dir=self.store.root, prefix=_SCRATCH) as scratch:
            path = Path(scratch) / DELTA
            with path.open("wb") as file:
                size = encode_image(
                    map_weights(base_weights, base.tensors),
                    map_weights(export.folder / WEIGHTS_FILE, record.tensors),
                    blocks=list_blocks(record),
                    file=file,
                    threads=self._threads,
                )
                os.fsync(file.fileno())  # After a power cut, the head must not name a lost file.
            if size > _WORTHWHILE * record.size + _SMALL_BYTES:
                return
            manifest = build_delta(path, export.folder, record=record, base=base)
            manifest = manifest.sign(self._domain, self._signer)
            files = {each.name: export.folder / each.name for each in manifest.objects[1:]}
            self.store.add_manifest(manifest, {DELTA: path, **files}, known=[DELTA, *files])
        self._add_to_head(export, manifest)

    def _add_to_head(self, export: Export, manifest: TransportManifest) -> None:
        """Add a manifest to the head. It replaces an older manifest with the same base."""
        head, step, record_hash = self._read_head(), export.record.step, export.record.compute_hash()
        ways = {way.base: way for each in head.policies if each.record == record_hash for way in each.ways}
        ways[manifest.base] = Way(manifest=manifest.address, base=manifest.base, size=manifest.size)
        served = ServedPolicy(step=step, record=record_hash, trained_at=export.trained_at, ways=tuple(ways.values()))
        policies = [*(each for each in head.policies if each.step != step), served]
        head = build_head(self._pool, policies)
        if len(head.policies) < len(policies):
            dropped = len(policies) - len(head.policies)
            fix = "Lower keep_policies, or create a pool with shorter windows"
            get_logger().warning("oldest policies are no longer offered: the head is full", dropped=dropped, fix=fix)
        self.store.write_head(self._pool, head)

    def _read_head(self) -> Head:
        """Return the head of the origin. A missing or damaged head is rebuilt from the records and manifests."""
        try:
            head = self.store.read_head(self._pool)
        except ProtocolError as error:
            get_logger().warning("the head of the origin is damaged and is rebuilt", why=error.message)
            head = None
        return head or self.store.rebuild_head(self._pool)

    def _read_record(self, record_hash: Hash) -> PolicyRecord | None:
        data = self.store.find_record(record_hash)
        return None if data is None else PolicyRecord.from_bytes(data, record_hash)


def _find_last_anchor(head: Head) -> ServedPolicy:
    """Return the newest policy of a head that has an anchor. It exists if any policy can be reached."""
    return next(each for each in head.policies if _has_anchor(each))


def _get_anchor_address(policy: ServedPolicy) -> Hash:
    """Return the address of the manifest of a policy's anchor."""
    return next(way.manifest for way in policy.ways if way.base == ZERO_HASH)


def _has_anchor(policy: ServedPolicy) -> bool:
    return any(way.base == ZERO_HASH for way in policy.ways)
