"""A trainer that offers random policies, relays in threads that serve them, and clients that fetch them."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from covey.protocol.eip712 import Signer
from covey.protocol.head import Head
from covey.protocol.ids import ZERO_HASH, Address, Hash, PoolId, Step
from covey.protocol.policy_record import PolicyRecord
from covey.shardcast import download, downloader
from covey.shardcast.downloader import Downloader
from covey.shardcast.export_preview import PreviewFolder
from covey.shardcast.offering import Export, Offering
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_files import read_piece
from covey.shardcast.policy_fetch import PolicyClient
from covey.shardcast.policy_source import PolicySource
from covey.shardcast.policy_store import PolicyStore
from tests.fakes.offered_policies import DOMAIN, TRAINER, build_offering, write_export
from tests.fakes.raw_server import HANG_S, RawServer, Send, respond

SIZES = {"a.norm": 100, "b.weight": 2_100_000, "c.weight": 2_097_152, "d.bias": 3}
"""Numbers of bfloat16 values: one tensor of two pieces, one of one, and two that share a piece."""


@dataclass
class OfferedPolicies:
    """Policies 0, 1, ... of pool 1. Each differs from the previous one in a few values."""

    root: Path
    sizes: dict[str, int] = field(default_factory=lambda: dict(SIZES))
    keep: int = 20
    anchor_every: int = 10
    signer: Signer | None = None
    exports: list[Export] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offering: Offering = build_offering(
            self.root / "origin", pool=PoolId(1), keep=self.keep, anchor_every=self.anchor_every
        )
        if self.signer:
            self.offering._signer = self.signer
        generator = np.random.default_rng(7)
        self.tensors = {name: generator.integers(0, 1 << 16, size, np.uint16) for name, size in self.sizes.items()}

    @property
    def store(self) -> OriginStore:
        return self.offering.store

    def offer(
        self, *, config: str = "{}", jump: bool = False, is_recorded: bool = False,
        is_previewed: bool = False, before_offer: Callable[[], object] = lambda: None,
    ) -> PolicyRecord:  # fmt: skip
        """Offer the next policy. With `is_recorded` this process remembers that it has hashed the export.

        With `is_previewed` its pieces are served while it is exported. `before_offer` is called after that.
        """
        step = Step(len(self.exports))
        generator = np.random.default_rng(step)
        for values in self.tensors.values():
            values[generator.integers(0, len(values), 1 + len(values) // 500)] ^= 1
        preview = (lambda path: self.offering.open_preview(step, path)) if is_previewed else (lambda _: None)
        folder = write_export(self.root / f"export-{step}", self.tensors, config=config, open_preview=preview)
        before_offer()
        if is_recorded:
            self.offering.checks.record(folder)
        parent = self.exports[-1].record.compute_hash() if step else ZERO_HASH
        export = Export(folder, self.offering.describe(folder, step, parent))
        self.exports.append(export)
        self.offering.offer(export, self.exports[-2].folder if step else None)
        if jump:
            self.offering.add_jump(export)
        return export.record

    def hash_of(self, step: int) -> Hash:
        return self.exports[step].record.compute_hash()

    def head(self) -> Head:
        head = self.store.read_head(1)
        assert head is not None
        return head

    def write_head(self, change: Callable[[Head], Head]) -> None:
        self.store.write_head(1, change(self.head()))

    def require_same(self, folder: Path, step: int) -> None:
        """Compare a client's folder with the trainer's, byte by byte."""
        for path in self.exports[step].folder.iterdir():
            if path.name != "model.pieces":
                assert (folder / path.name).read_bytes() == path.read_bytes(), path.name
        names = {path.name for path in self.exports[step].folder.iterdir()} - {"model.pieces"} | {"record.json"}
        assert {path.name for path in folder.iterdir()} == names


class FakeRelay(RawServer):
    """Serves an origin's folder. `alter(path, body)` may replace a body; None becomes status 404."""

    def __init__(self, store: OriginStore, alter: Callable[[str, bytes | None], bytes | None] | None = None) -> None:
        self.store, self.alter, self.previews = store, alter, PreviewFolder(store.root)
        super().__init__(self._answer)

    def find(self, path: str) -> bytes | None:
        """Return what the store has."""
        path = path.partition("?")[0]
        folder, _, name = path[1:].partition("/")
        if folder == "heads":
            return self.store.find_head(int(name.removesuffix(".json")))
        if folder == "records":
            return self.store.find_record(Hash(name))
        if folder == "manifests":
            return self.store.find_manifest(Hash(name))
        if folder == "previews":
            return self.previews.find(int(name))
        location = self.store.find_piece(Hash(name)) or self.previews.find_piece(Hash(name), verify=False)
        return None if location is None else read_piece(location)

    def count_pieces(self) -> int:
        return self.count("/pieces")

    def _answer(self, path: str, send: Send) -> bool:
        body = self.find(path)
        if self.alter:
            body = self.alter(path, body)
        send(respond(b"", 404) if body is None else respond(body))
        return True


def build_client(
    root: Path, *urls: str, keep: int = 8, seed: int | None = 0, signer: Address | None = None
) -> PolicyClient:
    """Return a client of pool 1 that trusts `signer`, by default the trainer of `build_offering`."""
    source = PolicySource(
        Downloader(urls, seed=seed), pool=PoolId(1), domain=DOMAIN, trainer=signer or Address(TRAINER.address)
    )
    return PolicyClient(source, PolicyStore(root, keep=keep, threads=2))


def wait_patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let downloads wait for relays longer than a test may take.

    A relay that a slow machine delays is then not mistaken for a silent one.
    """
    for name in (
        "_GRACE_SECONDS",
        "_SILENCE_SECONDS",
        "_LONE_SILENCE_SECONDS",
        "_DOCUMENT_SECONDS",
        "_LONGEST_DOCUMENT_SECONDS",
    ):
        monkeypatch.setattr(download, name, 2 * HANG_S)
    monkeypatch.setattr(downloader, "_EXTRA_SECONDS", 2 * HANG_S)


def close_client(client: PolicyClient) -> None:
    client.source.downloader.close()


def flip_bit(data: bytes, position: int, bit: int = 0) -> bytes:
    """Return a copy with one bit inverted."""
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


class ThrottledRelay(FakeRelay):
    """Sends bodies at `rate` bytes/s for all connections together. Counts the bytes of pieces that it has sent.

    After `limit` bytes of pieces it stalls until the limit is raised.
    """

    def __init__(self, store: OriginStore, *, rate: float) -> None:
        self.rate, self.sent, self.limit = rate, 0, math.inf
        self._pace, self._free_at = threading.Lock(), time.monotonic()
        super().__init__(store)

    def _answer(self, path: str, send: Send) -> bool:
        body = self.find(path)
        if body is None:
            send(respond(b"", 404))
            return True
        send(respond(b"", length=len(body)))
        step = max(1000, min(1 << 17, int(self.rate / 100)))
        for start in range(0, len(body), step):
            part = body[start : start + step]
            with self._pace:
                self._free_at = max(self._free_at, time.monotonic() - 0.01) + len(part) / self.rate
                wait_s = self._free_at - time.monotonic()
            time.sleep(max(0.0, wait_s))
            while path.startswith("/pieces") and self.sent >= self.limit and not self.is_closed.is_set():
                time.sleep(0.002)
            send(part)
            if path.startswith("/pieces"):
                self.sent += len(part)
        return True
