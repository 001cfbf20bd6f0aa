"""Small policies in an origin's folder, with pieces of real sizes and without a signature."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from covey.protocol.dataset_manifest import DATA_PIECE_BYTES, DatasetFile, DatasetManifest
from covey.protocol.head import Head, ServedPolicy, Way
from covey.protocol.ids import Hash
from covey.protocol.pieces import Piece, build_pieces, compute_digest
from covey.protocol.policy_record import FileRow, PolicyRecord, TensorRow
from covey.protocol.transport import DELTA, WEIGHTS, TransportManifest, TransportObject, list_runs
from covey.shardcast.manifest_index import read_contents
from covey.shardcast.origin_store import OriginStore

CONFIG = b'{"model_type": "tiny"}'
SIZES = (1000, 300)
"""Sizes in bytes of the tensors of a policy."""


@dataclass
class MadePolicy:
    """A policy as a trainer exports it."""

    folder: Path
    record: PolicyRecord
    anchor: TransportManifest

    @property
    def files(self) -> dict[str, Path]:
        return {WEIGHTS: self.folder / "model.safetensors", "config.json": self.folder / "config.json"}


def make_policy(folder: Path, *, step: int, sizes: Sequence[int] = SIZES) -> MadePolicy:
    """Export random U8 tensors of the given sizes."""
    folder.mkdir(parents=True)
    generator = random.Random(step)
    data = {f"t{index:04}": generator.randbytes(size) for index, size in enumerate(sizes)}
    rows = tuple(TensorRow(name=n, dtype="U8", shape=(len(d),), digest=compute_digest(d)) for n, d in data.items())
    file = FileRow(name="config.json", size=len(CONFIG), digest=compute_digest(CONFIG))
    record = PolicyRecord(pool=1, step=step, tensors=rows, files=(file,))
    (folder / "config.json").write_bytes(CONFIG)
    with (folder / "model.safetensors").open("wb") as weights:
        weights.write(record.header)
        weights.writelines(data.values())
    pieces: list[Piece] = []
    for run in list_runs(record.tensors):
        joined, start = memoryview(b"".join(data[row.name] for row in run.rows)), 0
        for size in run.sizes:
            pieces += build_pieces(joined[start : start + size])
            start += size
    objects = (
        TransportObject(name=WEIGHTS, pieces=tuple(pieces)),
        TransportObject(name="config.json", pieces=build_pieces(memoryview(CONFIG))),
    )
    anchor = TransportManifest(record=record.compute_hash(), objects=objects)
    anchor.require_reaches(record, None)
    return MadePolicy(folder, record, anchor)


@dataclass
class Publisher:
    """A trainer that publishes policies of pool 1 into an origin's folder."""

    store: OriginStore
    scratch: Path
    policies: dict[int, MadePolicy] = field(default_factory=dict)
    ways: dict[int, list[Way]] = field(default_factory=dict)

    def add_anchor(self, step: int, *, sizes: Sequence[int] = SIZES) -> MadePolicy:
        """Publish a new policy with an anchor."""
        made = self._export(step, sizes)
        self.store.add_manifest(made.anchor, made.files)
        self.ways[step].append(Way(manifest=made.anchor.address, size=made.anchor.size))
        self.write_head()
        return made

    def add_delta(self, step: int, base: int, *, size: int = 50) -> TransportManifest:
        """Publish a delta of random bytes, and the policy of its step if there is none yet."""
        if step not in self.policies:
            self._export(step)
        path = self.scratch / f"delta-{base}-{step}"
        path.write_bytes(random.Random(step * 1000 + base).randbytes(size))
        objects = (TransportObject(name=DELTA, pieces=build_pieces(memoryview(path.read_bytes()))),)
        record = self.policies[step].record.compute_hash()
        based_on = self.policies[base].record.compute_hash()
        manifest = TransportManifest(record=record, base=based_on, objects=objects)
        self.store.add_manifest(manifest, {DELTA: path})
        self.ways[step].append(Way(manifest=manifest.address, base=based_on, size=size))
        self.write_head()
        return manifest

    def add_dataset(self, seed: int, *, size: int = 3000) -> DatasetManifest:
        """Publish a data set of one file of random bytes."""
        path = self.scratch / f"rows-{seed}"
        path.write_bytes(random.Random(seed).randbytes(size))
        pieces = build_pieces(memoryview(path.read_bytes()), DATA_PIECE_BYTES)
        file = DatasetFile(name="rows.jsonl", size=size, hashes=tuple(piece.digest for piece in pieces))
        manifest = DatasetManifest(files=(file,))
        contents = read_contents(manifest.to_bytes(), manifest.digest)
        self.store.add_contents(manifest.digest, manifest.to_bytes(), contents, files={file.name: path})
        return manifest

    def get_record(self, step: int) -> Hash:
        return self.policies[step].record.compute_hash()

    def build_head(self) -> Head:
        steps = sorted(self.policies, reverse=True)
        served = [ServedPolicy(step=s, record=self.get_record(s), ways=tuple(self.ways[s])) for s in steps]
        return Head(pool=1, policies=tuple(served))

    def write_head(self) -> None:
        self.store.write_head(1, self.build_head())

    def _export(self, step: int, sizes: Sequence[int] = SIZES) -> MadePolicy:
        made = make_policy(self.scratch / f"export-{step}", step=step, sizes=sizes)
        self.policies[step], self.ways[step] = made, []
        self.store.add_record(made.record)
        return made


def flip(path: Path, position: int = -1) -> None:
    """Invert one bit of a file in place."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    with path.open("r+b") as file:
        file.write(data)
