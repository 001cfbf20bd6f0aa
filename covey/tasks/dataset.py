"""Reads a data set row by row, from a folder on this machine or from any other source of its bytes (`DataSet`).

No file is loaded as a whole: a row takes one read of an index and one read of the rows. The digest authenticates the
bytes but not their author, so their content is checked too: sizes before reading, then format, split and task type of
each row.
"""

import os
from pathlib import Path
from typing import Protocol

from covey.environments.base import Split
from covey.errors import OperatorError, ProtocolError
from covey.protocol.dataset_manifest import (
    DATA_PIECE_BYTES,
    MAX_DATASET_MANIFEST_BYTES,
    DatasetFile,
    DatasetManifest,
)
from covey.protocol.ids import Hash
from covey.protocol.pieces import compute_blake3
from covey.tasks.dataset_row import MAX_ROW_BYTES, TaskRecord
from covey.tasks.writing import ENTRY, MANIFEST_FILE, ROWS_FILE, get_index_name


class Bytes(Protocol):
    """Reads ranges of bytes from a data set's files."""

    def read(self, file: DatasetFile, offset: int, size: int) -> bytes:
        """Return `size` bytes of a file, starting at `offset`. The caller checks that they are inside the file.

        Raises TransientError if they cannot be fetched now, and OperatorError("bad_dataset") if they are damaged.
        """


class DataSet:
    """An open data set. It implements `environments.base.DatasetRows` and is thread-safe for reading."""

    def __init__(self, manifest: DatasetManifest, digest: Hash, content: Bytes) -> None:
        """Create a data set from its manifest, digest and bytes.

        Raises OperatorError("bad_dataset") if there is no rows file.
        """
        self.manifest, self.digest, self._content = manifest, digest, content
        self._files = {file.name: file for file in manifest.files}
        if ROWS_FILE not in self._files:
            raise self._refuse(f"its manifest does not list the file {ROWS_FILE}")

    @property
    def groups(self) -> dict[tuple[Split, str], int]:
        """Number of rows by split and task type."""
        counts: dict[tuple[Split, str], int] = {}
        for name, file in sorted(self._files.items()):
            split, _, rest = name.partition(".")
            task_type, _, ending = rest.rpartition(".")
            if ending == "index" and split == "train":
                counts["train", task_type] = file.size // ENTRY.size
            elif ending == "index" and split == "held_out":
                counts["held_out", task_type] = file.size // ENTRY.size
        return counts

    def count(self, split: Split, task_type: str) -> int:
        """Return the number of rows of a task type in a split."""
        index = self._files.get(get_index_name(split, task_type))
        return 0 if index is None else index.size // ENTRY.size

    def read(self, split: Split, task_type: str, index: int) -> TaskRecord:
        """Return row `index` of a task type in a split.

        Raises OperatorError("no_row") if there is no such row, and OperatorError("bad_dataset") if the row contradicts
        its index. Raises TransientError if the row must be fetched and no relay delivers it now.
        """
        if not 0 <= index < self.count(split, task_type):
            raise OperatorError(
                "no_row",
                f"row {index} was requested, but the data set {self.digest} has "
                f"{self.count(split, task_type)} {split} rows of type {task_type}",
                fix="Choose a row number from 0 to one less than the number of rows that covey tasks check prints",
            )
        name = get_index_name(split, task_type)
        location = f"row {index} of {name}"
        data = self._content.read(self._files[name], index * ENTRY.size, ENTRY.size)
        offset, size = ENTRY.unpack(data)
        row = self.parse(self.read_line(offset, size, location), location)
        if (row.task_type, row.split) != (task_type, split):
            raise self._refuse(f"{location} belongs to split {row.split} and type {row.task_type}")
        return row

    def read_line(self, offset: int, size: int, place: str) -> bytes:
        """Return the bytes of one row. `place` is the row's name in error messages.

        Raises OperatorError("bad_dataset") if the bytes are outside the rows file or too many for a row.
        """
        rows = self._files[ROWS_FILE]
        if size > MAX_ROW_BYTES or offset + size > rows.size:
            raise self._refuse(
                f"{place} points to {size} bytes at offset {offset}, which is too long for a row or outside "
                f"{ROWS_FILE} with its {rows.size} bytes"
            )
        return self._content.read(rows, offset, size)

    def parse(self, data: bytes, place: str) -> TaskRecord:
        """Parse the bytes of a row. `place` is its name in error messages. Raises OperatorError("bad_dataset")."""
        try:
            return TaskRecord.from_bytes(data)
        except ValueError as error:
            raise self._refuse(f"{place} cannot be parsed: {error}") from error

    def read_index(self, split: Split, task_type: str) -> bytes:
        """Return the bytes of a whole index."""
        file = self._files[get_index_name(split, task_type)]
        return self._content.read(file, 0, file.size)

    def _refuse(self, message: str) -> OperatorError:
        return build_damaged(f"the data set {self.digest} is invalid: {message}")


class Folder:
    """Reads the files in a data set's folder. It is thread-safe.

    A piece is hashed when it is first read, because a prompt from a damaged copy would cost a worker its stake.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hashed: set[tuple[str, int]] = set()
        """Files and numbers of the pieces that had their hashes."""

    def read(self, file: DatasetFile, offset: int, size: int) -> bytes:
        """Return a range of a file. Raises OperatorError("bad_dataset") if its pieces do not match the manifest."""
        for number in range(offset // DATA_PIECE_BYTES, -(-(offset + size) // DATA_PIECE_BYTES)):
            if (file.name, number) not in self._hashed:
                self.read_piece(file, number)
        return self._read(file, offset, size)

    def read_piece(self, file: DatasetFile, number: int) -> bytes:
        """Read a whole piece and hash it, even if it has been hashed before.

        Raises OperatorError("bad_dataset") if the hash differs from the manifest's.
        """
        piece, start = file.pieces[number], number * DATA_PIECE_BYTES
        data = self._read(file, start, piece.size)
        if compute_blake3(data) != piece.digest:
            raise build_damaged(
                f"piece {number} of {self.folder / file.name}, which starts at byte {start}, does not match its hash"
            )
        self._hashed.add((file.name, number))
        return data

    def _read(self, file: DatasetFile, offset: int, size: int) -> bytes:
        path = self.folder / file.name
        try:
            with path.open("rb", buffering=0) as opened:
                data = os.pread(opened.fileno(), size, offset)
        except OSError as error:
            raise build_damaged(f"the data set file {path} cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise build_damaged(f"the data set file {path} is shorter than its manifest says")
        return data


def open_folder(folder: Path) -> DataSet:
    """Open the data set in a folder. Its bytes are hashed later, when they are read.

    Raises OperatorError("no_dataset") if the folder has no data set, and OperatorError("bad_dataset") if the manifest
    is malformed or contradicts the sizes of the files.
    """
    data = read_manifest_bytes(folder)
    digest = compute_blake3(data)
    try:
        manifest = DatasetManifest.from_bytes(data, digest)
    except ProtocolError as error:
        raise build_damaged(f"the manifest {folder / MANIFEST_FILE} is invalid: {error.message}") from error
    for file in manifest.files:
        path = folder / file.name
        size = path.stat().st_size if path.is_file() else None
        if size != file.size:
            state = "is missing" if size is None else f"has {size} bytes"
            raise build_damaged(f"the data set file {path} {state}, but its manifest says {file.size} bytes")
    return DataSet(manifest, digest, Folder(folder))


def read_manifest_bytes(folder: Path) -> bytes:
    """Return the bytes of a folder's manifest. Raises OperatorError("no_dataset") if it cannot be read."""
    try:
        with (folder / MANIFEST_FILE).open("rb") as file:
            return file.read(MAX_DATASET_MANIFEST_BYTES + 1)
    except OSError as error:
        raise OperatorError(
            "no_dataset",
            f"the folder {folder} does not contain a data set",
            fix="Create a data set with covey tasks import",
        ) from error


def build_damaged(message: str) -> OperatorError:
    """Build the error for a data set whose bytes contradict its manifest or its indexes."""
    return OperatorError(
        "bad_dataset", message, fix="Import or copy the data set again, and check it with covey tasks check"
    )
