"""Pieces in files: their locations, whether they match their hashes, and how they are read without a copy.

A file is identified by its `FileStamp`. `PieceChecks` remembers the result of hashing a piece for a stamp, so a piece
is hashed once, and again after its file was replaced or written to.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from covey.protocol.ids import Hash
from covey.protocol.pieces import compute_blake3


class FileStamp(NamedTuple):
    """Identity of a file's content, as far as the file system reports it."""

    inode: int
    size: int
    """Size in bytes."""
    changed_ns: int
    """Unix time of the last write in nanoseconds."""


UNSETTLED = FileStamp(-1, -1, -1)
"""Stamp of a location in a file whose other parts are still being written."""


@dataclass(frozen=True, slots=True)
class Location:
    """Byte range in a file. Example: Location(Path("objects/0x5f.../weights"), 4096, 4194304, stamp)."""

    path: Path
    offset: int
    """Position of the first byte in the file."""
    size: int
    """Size in bytes."""
    stamp: FileStamp
    """Identity of the file at the time of the lookup, or UNSETTLED."""


def get_stamp(path: Path) -> FileStamp:
    """Return the identity of a file's content. Raises FileNotFoundError if there is no such file."""
    return _to_stamp(os.stat(path))


def _to_stamp(state: os.stat_result) -> FileStamp:
    return FileStamp(state.st_ino, state.st_size, state.st_mtime_ns)


def open_piece(location: Location) -> int | None:
    """Return a descriptor of the file of a piece, or None if the file is gone or has changed.

    The caller must close the descriptor. The bytes stay readable if the file is replaced or removed meanwhile.
    """
    try:
        descriptor = os.open(location.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if not _is_same(descriptor, location):
        os.close(descriptor)
        return None
    return descriptor


class PieceChecks:
    """Results of hashing pieces in files. All methods can be called by several threads."""

    def __init__(self) -> None:
        self._results: dict[Path, tuple[FileStamp, dict[Hash, bool]]] = {}
        self._lock = threading.Lock()

    def get_result(self, digest: Hash, location: Location) -> bool | None:
        """Return whether the piece matched its hash. Returns None if it was not hashed since its file last changed."""
        stamp, results = self._results.get(location.path, (None, {}))
        return results.get(digest) if stamp == location.stamp else None

    def check(self, digest: Hash, location: Location) -> bool:
        """Hash the piece, remember the result, and return whether it matches its hash."""
        data = read_piece(location)
        is_sound = data is not None and compute_blake3(data) == digest
        self.record(digest, location, is_sound=is_sound)
        return is_sound

    def record(self, digest: Hash, location: Location, *, is_sound: bool) -> None:
        """Remember whether a piece matches its hash."""
        with self._lock:
            stamp, results = self._results.get(location.path, (None, {}))
            if stamp != location.stamp:
                results = {}
                self._results[location.path] = (location.stamp, results)
            results[digest] = is_sound

    def forget(self, path: Path) -> None:
        """Forget all results of a file."""
        with self._lock:
            self._results.pop(path, None)

    def forget_folder(self, folder: Path) -> None:
        """Forget all results of the files in a folder."""
        with self._lock:
            for path in [path for path in self._results if path.parent == folder]:
                del self._results[path]


def _is_same(descriptor: int, location: Location) -> bool:
    return location.stamp is UNSETTLED or _to_stamp(os.fstat(descriptor)) == location.stamp


def read_piece(location: Location) -> bytes | None:
    """Return the bytes of a piece, or None if its file is gone or has changed."""
    descriptor = open_piece(location)
    if descriptor is None:
        return None
    try:
        data = os.pread(descriptor, location.size, location.offset)
        return data if _is_same(descriptor, location) else None
    finally:
        os.close(descriptor)


class DocumentChecks:
    """Reads records and manifests. Remembers for which stamp of a file the hash was right."""

    def __init__(self) -> None:
        self._stamps: dict[Path, FileStamp] = {}

    def read(self, path: Path, address: Hash, parse: Callable[[bytes, Hash], object], *, verify: bool) -> bytes | None:
        """Return the bytes of a document, or None if its file does not exist.

        `parse` checks the bytes against the address, once per stamp, and again if `verify` is True. Raises the
        ProtocolError of `parse`.
        """
        try:
            stamp = get_stamp(path)
            data = path.read_bytes()
            if verify or self._stamps.get(path) != stamp:
                self.forget(path)
                parse(data, address)
                self._stamps[path] = stamp
        except FileNotFoundError:
            return None
        return data

    def forget(self, path: Path) -> None:
        """Forget a document that was removed."""
        self._stamps.pop(path, None)
