"""Fetches a policy from relays that nobody trusts: every shard is hashed, the manifest has the chain's hash.

A relay is picked in proportion to its success rate times its bandwidth (INTELLECT-2, SHARDCAST).  One that fails
loses weight, one that lies or stalls all of it, and one that is not used heals.  A half-fetched policy is resumed; a
whole one appears by one rename.
"""

import asyncio
import hashlib
import os
import random
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from covey.errors import ProtocolError
from covey.protocol.ids import Hash
from covey.protocol.manifest import (
    MAX_MANIFEST_BYTES,
    DatasetManifest,
    DatasetName,
    File,
    Manifest,
    ManifestName,
    PolicyName,
    Shard,
)
from covey.runtime.log import get_logger
from covey.runtime.urls import hide_secrets
from covey.shardcast.failures import Failures, LackingError, NotDeliveredError, SilentError
from covey.shardcast.store import compute_range_hash

CONCURRENT_SHARDS = 4
ATTEMPTS = 4
_SMOOTHING = 0.2
_HEALING = 1.01
STALL_S = 5.0
"""Seconds without a byte after which a request is given up."""
_PATIENCE_S = 30.0
_LEAST_BANDWIDTH = 100_000
"""Bytes/s, after which a relay that drips is given up."""

Content = TypeVar("Content")


@dataclass(slots=True)
class RelayScore:
    """Moving averages of one relay.  `bandwidth` in bytes/s."""

    url: str
    success: float = 1.0
    bandwidth: float = 50e6

    @property
    def weight(self) -> float:
        return max(self.success * self.bandwidth, 1.0)

    def record(self, *, size: int, seconds: float, is_good: bool) -> None:
        """Learn from one transfer."""
        self.success += _SMOOTHING * (is_good - self.success)
        if is_good:
            self.bandwidth += _SMOOTHING * (size / max(seconds, 1e-6) - self.bandwidth)

    def heal(self) -> None:
        """An unused relay drifts back to the benefit of the doubt."""
        self.success = min(1.0, self.success * _HEALING + 1e-3)


class ShardClient:
    """Example: `await ShardClient(["http://127.0.0.1:9001"]).fetch(pool=1, step=3, manifest_hash=..., folder=...)`."""

    def __init__(self, relays: Sequence[str], *, seed: int = 0, stall_s: float = STALL_S) -> None:
        self.scores = [RelayScore(url.rstrip("/")) for url in relays if _is_address(url)]
        if not self.scores:
            raise ProtocolError("no_relays", "no relay is known")
        self._random = random.Random(seed)
        timeout, headers = httpx.Timeout(stall_s, connect=3), {"accept-encoding": "identity"}
        self._http = httpx.AsyncClient(timeout=timeout, headers=headers, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def fetch(self, *, pool: int, step: int, manifest_hash: Hash, folder: Path) -> Path:
        """Return `folder` with the policy's files, all hashes checked.

        Raises TransientError "not_at_relays" when all relays answer that they do not have it, else "no_relay".
        """
        if folder.exists():
            return folder
        policy = PolicyName(pool=pool, step=step, manifest_hash=manifest_hash)
        manifest = await self.fetch_manifest(pool, step, manifest_hash)
        draft = folder.with_name(folder.name + ".part")
        draft.mkdir(parents=True, exist_ok=True)
        for path in draft.iterdir():
            if path.name not in {file.name for file in manifest.files}:
                path.unlink()
        slots = asyncio.Semaphore(CONCURRENT_SHARDS)
        for file in manifest.files:
            await self._fetch_file(file, draft / file.name, slots, policy)
        draft.replace(folder)
        return folder

    async def fetch_manifest(self, pool: int, step: int, manifest_hash: Hash) -> Manifest:
        """The manifest with the chain's hash; raise TransientError when no relay has it."""
        policy = PolicyName(pool=pool, step=step, manifest_hash=manifest_hash)
        manifest = await self._ask(
            policy.path,
            MAX_MANIFEST_BYTES,
            lambda data: Manifest.from_bytes(data, manifest_hash),
            thing=f"the manifest of step {step}",
        )
        if (manifest.pool, manifest.step) != (pool, step):
            raise ProtocolError("bad_manifest", f"the chain's hash for step {step} is of another policy")
        return manifest

    async def fetch_dataset_manifest(self, digest: Hash) -> DatasetManifest:
        """The manifest of a data set, which has the digest as its hash; raise TransientError when no relay has it."""
        name = DatasetName(digest=digest)
        return await self._ask(name.path, MAX_MANIFEST_BYTES, name.read_manifest, thing=f"the data set {digest}")

    async def fetch_shard(self, shard: Shard, name: ManifestName) -> bytes:
        """The checked bytes of a shard that the manifest of `name` lists; raise TransientError if no relay has it."""
        return await self._ask(
            name.get_shard_path(shard.sha256),
            shard.size,
            lambda data: _require_shard(data, shard),
            thing=f"shard {shard.sha256}",
        )

    async def _fetch_file(self, file: File, path: Path, slots: asyncio.Semaphore, policy: PolicyName) -> None:
        with path.open("ab") as handle:
            handle.truncate(file.size)
        offsets, offset = [], 0
        for shard in file.shards:
            offsets.append(offset)
            offset += shard.size
        pieces = zip(file.shards, offsets, strict=True)
        fetching = (self._fetch_shard(shard, path, start, slots, policy) for shard, start in pieces)
        for outcome in await asyncio.gather(*fetching, return_exceptions=True):
            if outcome is not None:
                raise outcome
        found = await asyncio.to_thread(_sync_and_hash, path, file.size)
        if found != file.sha256:
            raise ProtocolError("bad_manifest", f"{file.name} does not have the hash that its manifest names")

    async def _fetch_shard(
        self, shard: Shard, path: Path, offset: int, slots: asyncio.Semaphore, policy: PolicyName
    ) -> None:
        async with slots:
            if await asyncio.to_thread(compute_range_hash, path, offset, shard.size) == shard.sha256:
                return
            await asyncio.to_thread(_write_at, path, offset, await self.fetch_shard(shard, policy))

    async def _ask(self, path: str, limit: int, check: Callable[[bytes], Content], *, thing: str) -> Content:
        """What `check` makes of the first answer that it does not refuse with ProtocolError.

        At most ATTEMPTS relays are asked; those that are not heal.  Raises TransientError if none delivers.
        """
        failures, unused = Failures(), list(self.scores)
        try:
            for score in self._draw():
                unused.remove(score)
                try:
                    return check(await self._get(score, path, limit))
                except NotDeliveredError as error:
                    failures.note(score.url, error)
                except ProtocolError as error:
                    failures.note(score.url, self._blame(score, error.message))
        finally:
            for score in unused:
                score.heal()
        raise failures.to_error(thing)

    def _draw(self) -> list[RelayScore]:
        """Relays to try in turn, each drawn by weight among those left; at most ATTEMPTS."""
        left = list(self.scores)
        order: list[RelayScore] = []
        while left and len(order) < ATTEMPTS:
            (chosen,) = self._random.choices(left, weights=[score.weight for score in left])
            left.remove(chosen)
            order.append(chosen)
        return order

    async def _get(self, score: RelayScore, path: str, limit: int) -> bytes:
        """At most `limit` bytes; raise NotDeliveredError."""
        started, pieces, size = time.monotonic(), [], 0
        try:
            async with (
                asyncio.timeout(_PATIENCE_S + limit / _LEAST_BANDWIDTH),
                self._http.stream("GET", score.url + path) as response,
            ):
                if response.status_code != 200:
                    score.record(size=0, seconds=1, is_good=False)
                    if response.status_code == 404:
                        raise LackingError("does not have it")
                    raise NotDeliveredError(f"answered with status {response.status_code}")
                async for piece in response.aiter_raw():
                    size += len(piece)
                    if size > limit:
                        raise self._blame(score, "it sends more than was asked for")
                    pieces.append(piece)
        except (httpx.HTTPError, TimeoutError) as error:
            score.record(size=0, seconds=1, is_good=False)
            if isinstance(error, httpx.TimeoutException | TimeoutError):  # it cost much time: others are asked first
                score.success = 0.0
            raise SilentError(f"did not answer: {type(error).__name__}") from error
        score.record(size=size, seconds=time.monotonic() - started, is_good=True)
        return b"".join(pieces)

    def _blame(self, score: RelayScore, why: str) -> NotDeliveredError:
        """A lie, unlike a failure, costs all credit."""
        score.success = 0.0
        get_logger().warning("relay lies", relay=hide_secrets(score.url), why=why)
        return NotDeliveredError(f"sent something else: {why}")


def _is_address(url: str) -> bool:
    """Relays are named by strangers: one that is no address must not end the client."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host) and (parsed.port or 0) <= 65535


def get_policy_folder(root: Path, step: int, manifest_hash: Hash) -> Path:
    """Where a client keeps a policy: another chain's policy of the same step lies elsewhere."""
    return root / f"{step}-{manifest_hash[2:18]}"


def prune_policies(root: Path, *, keep: int, spare: Collection[Path]) -> None:
    """Remove all but the newest `keep` policy folders of `get_policy_folder`, and those of `spare`."""
    folders = [path for path in root.iterdir() if path.name.partition("-")[0].isdigit()]
    for folder in sorted(folders, key=lambda path: int(path.name.partition("-")[0]))[:-keep]:
        if folder not in spare:
            shutil.rmtree(folder, ignore_errors=True)


def _require_shard(data: bytes, shard: Shard) -> bytes:
    if len(data) != shard.size or "0x" + hashlib.sha256(data).hexdigest() != shard.sha256:
        raise ProtocolError("bad_shard", "a shard does not have its hash")
    return data


def _sync_and_hash(path: Path, size: int) -> Hash:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    return compute_range_hash(path, 0, size)


def _write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
