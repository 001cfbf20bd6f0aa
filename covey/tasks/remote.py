"""Data sets at relays. Reading a row fetches its shards, checks them and keeps them for later runs.

Rows are drawn in threads and sometimes in a role's event loop. `ShardFetcher` therefore has its own event loop and
thread, so that it never waits for a different loop. Every wait has a deadline.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from covey.errors import TransientError
from covey.protocol.ids import Hash
from covey.protocol.manifest import DATA_SHARD_BYTES, DatasetManifest, DatasetName, File, Shard
from covey.runtime.log import get_logger
from covey.shardcast.client import ShardClient
from covey.shardcast.store import ShardStore
from covey.tasks.dataset import DataSet

FETCH_SECONDS = 60.0
"""Timeout in seconds for one manifest or shard, for all relays together."""
_STOP_SECONDS = 10.0
"""Timeout in seconds for ending the thread, and grace period of each wait for it."""

Result = TypeVar("Result")


class ShardFetcher:
    """Fetches from relays in synchronous code. Example: `ShardFetcher(["http://127.0.0.1:9001"])`."""

    def __init__(self, relays: Sequence[str], *, seconds: float = FETCH_SECONDS) -> None:
        """Start the thread. Raises ProtocolError("no_relays") if `relays` is empty."""
        self._client, self._seconds = ShardClient(relays), seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="datasets", daemon=True)
        self._thread.start()

    def fetch_manifest(self, digest: Hash) -> DatasetManifest:
        """Fetch the manifest of a data set. Raises TransientError while no relay delivers it."""
        return self._call(lambda: self._client.fetch_dataset_manifest(digest), f"data set {digest}")

    def fetch_shard(self, shard: Shard, name: DatasetName) -> bytes:
        """Fetch the bytes of a shard and check them. Raises TransientError while no relay delivers them."""
        return self._call(lambda: self._client.fetch_shard(shard, name), f"a shard of data set {name.digest}")

    def close(self) -> None:
        """End the thread. Calls that are waiting for a relay raise TransientError."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result(_STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
        self._loop.close()

    def _call(self, ask: Callable[[], Awaitable[Result]], thing: str) -> Result:
        async def wait() -> Result:
            async with asyncio.timeout(self._seconds):
                return await ask()

        if self._loop.is_closed():
            raise TransientError("no_relay", f"{thing} was requested while this process was shutting down")
        waiting: Future[Result] = asyncio.run_coroutine_threadsafe(wait(), self._loop)
        try:
            return waiting.result(self._seconds + _STOP_SECONDS)
        except TimeoutError as error:
            waiting.cancel()
            raise TransientError("no_relay", f"no relay served {thing} within {self._seconds:g} s") from error


class Shards:
    """Reads a data set's files from a folder of shards, which it fills from relays."""

    def __init__(
        self, manifest: DatasetManifest, name: DatasetName, *, fetcher: ShardFetcher, store: ShardStore
    ) -> None:
        self._name, self._fetcher, self._store = name, fetcher, store
        self._locks = {shard.sha256: threading.Lock() for shard in manifest.shards}

    def read(self, file: File, offset: int, size: int) -> bytes:
        """Return a range of a file. Shards that are missing or damaged on this machine are fetched."""
        pieces = []
        end = offset + size
        while offset < end:
            number, start = divmod(offset, DATA_SHARD_BYTES)
            length = min(end - offset, DATA_SHARD_BYTES - start)
            with self._require(file.shards[number]).open("rb") as shard:
                shard.seek(start)
                pieces.append(shard.read(length))
            offset += length
        return b"".join(pieces)

    def _require(self, shard: Shard) -> Path:
        """Return the path of a shard with the right hash. Two threads never fetch the same shard at once."""
        with self._locks[shard.sha256]:
            try:
                if (path := self._store.find_shard(shard.sha256)) is not None:
                    return path
            except TransientError as error:  # the stored copy is damaged
                get_logger().warning("stored shard damaged, fetching it again", message=error.message)
            data = self._fetcher.fetch_shard(shard, self._name)
            try:
                self._store.add_shard(shard.sha256, data)
            except OSError as error:
                raise TransientError(
                    "disk_full", f"a shard of a data set could not be stored: {error.strerror}"
                ) from error
            return self._store.get_shard_path(shard.sha256)


def open_remote(digest: Hash, *, fetcher: ShardFetcher, folder: Path) -> DataSet:
    """Open the data set with a digest at relays, and keep copies of its shards in `folder`.

    Raises TransientError while no relay delivers the manifest. Raises OperatorError("bad_dataset") if the manifest has
    no rows.
    """
    name, store = DatasetName(digest=digest), ShardStore(folder)
    manifest = _find_manifest(store, name)
    if manifest is None:
        manifest = fetcher.fetch_manifest(digest)
        try:
            store.add_manifest(manifest)
        except OSError as error:
            raise TransientError(
                "disk_full", f"the manifest of a data set could not be stored: {error.strerror}"
            ) from error
    return DataSet(manifest, digest, Shards(manifest, name, fetcher=fetcher, store=store))


def _find_manifest(store: ShardStore, name: DatasetName) -> DatasetManifest | None:
    try:
        data = store.find_manifest(name)
        return None if data is None else name.read_manifest(data)
    except TransientError as error:
        get_logger().warning("stored manifest damaged, fetching it again", message=error.message)
        return None
