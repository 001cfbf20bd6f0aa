"""Index of the pieces of all manifests in a folder, and where the objects of an origin contain them.

`read_contents` is the only place that knows which kinds of manifest exist. Another process adds and removes manifests,
so the index lists the folder again when a piece is unknown and the folder has changed.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from covey.errors import ProtocolError
from covey.protocol.dataset_manifest import DatasetManifest
from covey.protocol.ids import Hash, is_hash
from covey.protocol.pieces import Piece
from covey.protocol.transport import TransportManifest
from covey.runtime.log import get_logger

_SETTLED_NS = 100_000_000
"""Time in nanoseconds after which a further change of the folder certainly changes its modification time."""


class ObjectContents(NamedTuple):
    """Pieces of one file of a manifest, in order. Example: name="weights", with the pieces of the weights file."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Total size of the pieces in bytes."""
        return sum(piece.size for piece in self.pieces)


def _read_transport(data: bytes, address: Hash) -> tuple[ObjectContents, ...]:
    objects = TransportManifest.from_bytes(data, address).objects
    return tuple(ObjectContents(each.name, each.pieces) for each in objects)


def _read_dataset(data: bytes, digest: Hash) -> tuple[ObjectContents, ...]:
    return tuple(ObjectContents(file.name, file.pieces) for file in DatasetManifest.from_bytes(data, digest).files)


_TRANSPORT, _DATASET = b"CVT1", b'{"files":'
_READERS: dict[bytes, Callable[[bytes, Hash], tuple[ObjectContents, ...]]] = {
    _TRANSPORT: _read_transport,
    _DATASET: _read_dataset,
}
"""Functions that parse a manifest, by the first bytes of manifests of their kind."""


def read_contents(data: bytes, address: Hash) -> tuple[ObjectContents, ...]:
    """Return the objects of a manifest of any kind.

    Raises ProtocolError("bad_manifest") unless the bytes are a valid manifest with this address.
    """
    for mark, read in _READERS.items():
        if data.startswith(mark):
            return read(data, address)
    raise ProtocolError(
        "bad_manifest", f"the manifest {address} begins with {data[:4]!r}, which is not a known kind", status=502
    )


def is_transport(path: Path) -> bool:
    """Return whether a file is a transport manifest, rather than the manifest of a data set. Reads its first bytes
    only.
    """
    with path.open("rb") as file:
        return file.read(len(_TRANSPORT)) == _TRANSPORT


class PiecePlace(NamedTuple):
    """Place of a piece in an object's file, counted from the end because a safetensors header may come first."""

    path: Path
    to_end: int
    """Number of bytes from the first byte of the piece to the end of the file."""
    size: int
    """Size of the piece in bytes."""


class ManifestIndex:
    """Places of all pieces, by hash. All methods can be called by several threads."""

    def __init__(self, manifests: Path, objects: Path) -> None:
        self._manifests, self._objects = manifests, objects
        self._places: dict[Hash, tuple[PiecePlace, ...]] = {}
        self._listed: dict[str, frozenset[Hash]] = {}
        """Pieces of each indexed manifest, by file name."""
        self._changed_ns = -1
        self._lock = threading.Lock()

    def find(self, digest: Hash) -> tuple[PiecePlace, ...]:
        """Return the known places of a piece. Does not look for new manifests."""
        return self._places.get(digest, ())

    def iterate(self) -> Iterator[tuple[Hash, PiecePlace]]:
        """Yield every piece with each of its places, grouped by object."""
        pairs = [(digest, place) for digest, places in tuple(self._places.items()) for place in places]
        yield from sorted(pairs, key=lambda pair: (pair[1].path, -pair[1].to_end))

    def __len__(self) -> int:
        return len(self._places)

    def refresh(self) -> tuple[Path, ...]:
        """Add new manifests and drop removed ones, if the folder has changed.

        Returns the object folders of the dropped manifests.
        """
        with self._lock:
            changed_ns = self._manifests.stat().st_mtime_ns
            if changed_ns == self._changed_ns:
                return ()
            names = {path.name for path in self._manifests.iterdir() if is_hash(path.name)}
            dropped = self._listed.keys() - names
            for name in dropped:
                self._drop(name)
            for name in names - self._listed.keys():
                self._add(name)
            self._changed_ns = changed_ns if time.time_ns() - changed_ns > _SETTLED_NS else -1
            return tuple(self._objects / name for name in dropped)

    def _add(self, name: str) -> None:
        path = self._manifests / name
        try:
            contents = read_contents(path.read_bytes(), Hash(name))
        except FileNotFoundError:
            return
        except ProtocolError as error:
            fix = "Restart the trainer, which offers its policies and data sets again"
            get_logger().warning("damaged manifest is ignored", path=str(path), reason=error.message, fix=fix)
            return
        for each in contents:
            to_end, file = each.size, self._objects / name / each.name
            for piece in each.pieces:
                places = self.find(piece.digest)
                if not any(place.path == file for place in places):
                    self._places[piece.digest] = (*places, PiecePlace(file, to_end, piece.size))
                to_end -= piece.size
        self._listed[name] = frozenset(piece.digest for each in contents for piece in each.pieces)

    def _drop(self, name: str) -> None:
        folder = self._objects / name
        for digest in self._listed.pop(name):
            left = tuple(place for place in self.find(digest) if place.path.parent != folder)
            if left:
                self._places[digest] = left
            else:
                self._places.pop(digest, None)
