"""Data sets at relays. Reading a row fetches the pieces that contain it, and verified copies stay on this machine.

Rows are drawn in threads and in event loops. All calls are therefore synchronous, can come from several threads, and
download in threads of their own, so a call from an event loop cannot deadlock. Every wait has a deadline.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from covey.errors import ProtocolError, TransientError
from covey.protocol.dataset_manifest import (
    DATA_PIECE_BYTES,
    MAX_DATASET_MANIFEST_BYTES,
    DatasetFile,
    DatasetManifest,
)
from covey.protocol.head import get_manifest_path
from covey.protocol.ids import Hash
from covey.protocol.pieces import Piece
from covey.shardcast.downloader import Downloader
from covey.shardcast.piece_cache import PieceCache
from covey.shardcast.piece_files import Location
from covey.tasks.dataset import DataSet, build_damaged

FETCH_SECONDS = 60.0
"""Timeout in seconds for one manifest or piece, for all relays together."""
_STOP_SECONDS = 10.0
"""Maximum time in seconds that `close` waits for calls to end."""


class RemoteFiles:
    """The files of all data sets that relays serve. It implements `dataset.Bytes` and is thread-safe.

    Example: `RemoteFiles(["http://127.0.0.1:9001"], Path("home/datasets")).open(digest).read("train", "math", 7)`.
    """

    def __init__(self, relays: Sequence[str], folder: Path, *, seconds: float = FETCH_SECONDS) -> None:
        """`folder` contains the copies. Raises ProtocolError("no_relays") if no relay has a valid URL."""
        self._downloader, self._seconds = Downloader(relays), seconds
        with _explain_full_disk(f"the folder {folder}"):
            self._cache = PieceCache(folder)
        self._stop = threading.Event()
        self._fetching: set[Hash] = set()
        """Manifests and pieces that a thread is fetching."""
        self._change = threading.Condition()

    def open(self, digest: Hash) -> DataSet:
        """Open the data set with a digest.

        Raises TransientError while no relay delivers the manifest. Raises OperatorError("bad_dataset") if the manifest
        has no rows.
        """
        with self._take_turn(digest, f"the data set {digest}"):
            manifest = self._find_manifest(digest) or self._fetch_manifest(digest)
        return DataSet(manifest, digest, self)

    def read(self, file: DatasetFile, offset: int, size: int) -> bytes:
        """Return a range of a file. Pieces that are missing or damaged on this machine are fetched.

        Raises TransientError while no relay delivers them. Raises OperatorError("bad_dataset") if a piece does not have
        the size that follows from the manifest.
        """
        parts = []
        end = offset + size
        while offset < end:
            number, start = divmod(offset, DATA_PIECE_BYTES)
            piece = file.pieces[number]
            location = self._require_piece(piece)
            if location.size != piece.size:
                raise build_damaged(f"piece {number} of {file.name} has {location.size} bytes, not {piece.size}")
            length = min(end - offset, piece.size - start)
            parts.append(_read(location, start, length))
            offset += length
        return b"".join(parts)

    def close(self) -> None:
        """End all calls that wait for a relay. They raise TransientError("stopped"), as all later ones do."""
        self._stop.set()
        with self._change:
            self._change.wait_for(lambda: not self._fetching, _STOP_SECONDS)
        self._downloader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_piece(self, piece: Piece) -> Location:
        """Return where a verified copy of a piece is."""
        location = self._cache.find_checked_piece(piece.digest)
        if location is not None:
            return location
        with self._take_turn(piece.digest, f"the piece {piece.digest} of a data set"):
            return self._cache.find_piece(piece.digest) or self._fetch_piece(piece)

    def _fetch_piece(self, piece: Piece) -> Location:
        locations: list[Location] = []
        thing = f"the piece {piece.digest} of a data set"

        def keep(kept: Piece, _: None, data: memoryview) -> None:
            with _explain_full_disk(thing):
                locations.append(self._cache.add_piece(kept.digest, data))

        on_look = self._build_deadline(thing)
        self._downloader.fetch_pieces([(piece, None)], keep, thing=thing, stop=self._stop, on_look=on_look)
        return locations[0]

    def _find_manifest(self, digest: Hash) -> DatasetManifest | None:
        data = self._cache.find_manifest(digest)
        try:
            return None if data is None else DatasetManifest.from_bytes(data, digest)
        except ProtocolError:
            return None  # It is the manifest of a policy.

    def _fetch_manifest(self, digest: Hash) -> DatasetManifest:
        thing = f"the data set {digest}"
        manifest, _ = self._downloader.fetch(
            get_manifest_path(digest),
            limit=MAX_DATASET_MANIFEST_BYTES,
            check=lambda data: DatasetManifest.from_bytes(data, digest),
            thing=thing,
            stop=self._stop,
            on_look=self._build_deadline(thing),
        )
        with _explain_full_disk(thing):
            self._cache.add_manifest(digest, manifest.to_bytes())
        return manifest

    @contextmanager
    def _take_turn(self, address: Hash, thing: str) -> Iterator[None]:
        """Wait until no other thread fetches the same manifest or piece."""
        with self._change:
            if not self._change.wait_for(lambda: address not in self._fetching, self._seconds):
                raise TransientError("no_relay", f"another thread has been fetching {thing} for {self._seconds:g} s")
            if self._stop.is_set():
                raise TransientError("stopped", f"{thing} was requested while this process was shutting down")
            self._fetching.add(address)
        try:
            yield
        finally:
            with self._change:
                self._fetching.discard(address)
                self._change.notify_all()

    def _build_deadline(self, thing: str) -> Callable[[], None]:
        """Return a function that raises TransientError once the time for a download has passed."""
        ends_at = time.monotonic() + self._seconds

        def check() -> None:
            if time.monotonic() > ends_at:
                raise TransientError("no_relay", f"no relay served {thing} within {self._seconds:g} s")

        return check


@contextmanager
def _explain_full_disk(thing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{thing} could not be stored: {error.strerror}. Free space, or set home to a folder on another disk"
        raise TransientError("disk_full", message) from error


def _read(location: Location, start: int, size: int) -> bytes:
    with location.path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), size, location.offset + start)
