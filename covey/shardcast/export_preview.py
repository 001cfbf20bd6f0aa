"""Pieces of a policy that a trainer is still exporting, in the folder of an origin.

    previews/<pool>/<random>/weights    the weights file, a hard link to the one that is being written
    previews/<pool>/<random>/pieces     rows of the pieces that are in it, as in `covey.protocol.preview`

A pool has at most one preview. It disappears when the policy is offered or when the next export begins. The trainer has
hashed the pieces, but the preview is not signed. The file still changes, so its stamp does not prove anything.
"""

import os
import secrets
import shutil
import threading
from pathlib import Path

from covey.protocol.ids import Hash
from covey.protocol.pieces import Piece, compute_blake3
from covey.protocol.preview import MAX_PREVIEW_BYTES, ROW_BYTES, PreviewRow, parse_preview
from covey.runtime.log import get_logger
from covey.shardcast.piece_files import UNSETTLED, Location, read_piece

_WEIGHTS, _PIECES = "weights", "pieces"


class PreviewWriter:
    """Adds pieces to a preview. Several threads may use it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._room = MAX_PREVIEW_BYTES
        self._lock = threading.Lock()

    def add(self, piece: Piece, offset: int) -> None:
        """Add a piece that was written at this offset of the weights file. Does nothing if the preview is full."""
        row = PreviewRow(piece, offset).to_bytes()
        with self._lock:
            if self._room >= len(row):
                self._room -= len(row)
                os.write(self._file, row)

    def close(self) -> None:
        """Close the file of rows. Its pieces are served until the policy is offered."""
        os.close(self._file)


class PreviewFolder:
    """Previews at an origin. One process per pool writes, and any number of processes read."""

    def __init__(self, root: Path) -> None:
        """`root` is the folder of the origin."""
        self._root = root / "previews"
        self._places: dict[Path, tuple[int, dict[Hash, Location]]] = {}
        """Size of each file of rows when it was last read, and the locations of its pieces."""

    def open(self, pool: int, weights: Path) -> PreviewWriter | None:
        """Start the preview of an export, whose weights file exists. It replaces an earlier preview of the pool.

        Returns None if the file cannot be linked, because it is on another file system.
        """
        self.remove(pool)
        folder = self._root / str(pool) / secrets.token_hex(8)
        folder.mkdir(parents=True)
        try:
            os.link(weights, folder / _WEIGHTS)
        except OSError as error:
            get_logger().info(
                "export has no preview, because it cannot be linked", path=str(weights), reason=error.strerror
            )
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return PreviewWriter(folder / _PIECES)

    def remove(self, pool: int, weights: Path | None = None) -> None:
        """Remove the preview of a pool, if it exists. With `weights`, remove it only if it previews this file."""
        for path in self._root.glob(f"{pool}/*/{_WEIGHTS}"):
            if weights is None or path.samefile(weights):
                shutil.rmtree(path.parent, ignore_errors=True)

    def find(self, pool: int) -> bytes | None:
        """Return the complete rows of a pool's preview, or None if there is none."""
        for path in self._root.glob(f"{pool}/*/{_PIECES}"):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            return data[: len(data) // ROW_BYTES * ROW_BYTES]
        return None

    def find_piece(self, digest: Hash, *, verify: bool) -> Location | None:
        """Return the location of a previewed piece, or None. If `verify` is True, its bytes are hashed again."""
        location = self._find_known(digest)
        if location is None:  # Reading the rows takes longer than sending a piece, so only new pieces cause it.
            self._refresh()
            location = self._find_known(digest)
        if location is not None and verify and compute_blake3(read_piece(location) or b"") != digest:
            return None
        return location

    def _find_known(self, digest: Hash) -> Location | None:
        found = (places.get(digest) for _, places in tuple(self._places.values()))
        return next((each for each in found if each is not None and each.path.exists()), None)

    def _refresh(self) -> None:
        """Read the rows that were added, and drop previews that have ended."""
        paths = set(self._root.glob(f"*/*/{_PIECES}"))
        for path in paths.union(self._places):
            if path in paths:
                self._read_rows(path)
            else:
                self._places.pop(path, None)

    def _read_rows(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        size, places = self._places.get(path, (0, {}))
        whole, weights = len(data) // ROW_BYTES * ROW_BYTES, path.with_name(_WEIGHTS)
        if whole > size:
            new = parse_preview(data[size:whole])
            added = {row.piece.digest: Location(weights, row.offset, row.piece.size, UNSETTLED) for row in new}
            self._places[path] = whole, {**places, **added}
