"""Reads a data set row by row: `DataSet` over a folder of this machine, or over whatever else serves its bytes.

Nothing is loaded as a whole: a row costs one read of an index and one of the rows.  The digest vouches for the bytes
but not for their author, so what they say is checked: sizes before reading, form, split and task type of each row.
"""

import os
from pathlib import Path
from typing import Protocol

from covey.environments.base import Split
from covey.errors import OperatorError, ProtocolError
from covey.protocol import canonical
from covey.protocol.ids import Hash
from covey.protocol.manifest import DATA_SHARD_BYTES, MAX_MANIFEST_BYTES, DatasetManifest, File
from covey.tasks.dataset_row import MAX_ROW_BYTES, TaskRecord
from covey.tasks.writing import ENTRY, MANIFEST_FILE, ROWS_FILE, get_index_name


class Bytes(Protocol):
    """Serves parts of a data set's files."""

    def read(self, file: File, offset: int, size: int) -> bytes:
        """`size` bytes of a file from `offset` on, which lie inside it.

        Raises TransientError where they cannot be had now, OperatorError("bad_dataset") where they are damaged.
        """


class DataSet:
    """An open data set, as `environments.base.Rows`.  Any thread may read it."""

    def __init__(self, manifest: DatasetManifest, digest: Hash, content: Bytes) -> None:
        """Raises OperatorError("bad_dataset") where the manifest lists no rows."""
        self.manifest, self.digest, self._content = manifest, digest, content
        self._files = {file.name: file for file in manifest.files}
        if ROWS_FILE not in self._files:
            raise self._refuse(f"it has no file {ROWS_FILE}")

    @property
    def groups(self) -> dict[tuple[Split, str], int]:
        """Numbers of rows by split and task type."""
        found: dict[tuple[Split, str], int] = {}
        for name, file in sorted(self._files.items()):
            split, _, rest = name.partition(".")
            task_type, _, ending = rest.rpartition(".")
            if ending == "index" and split == "train":
                found["train", task_type] = file.size // ENTRY.size
            elif ending == "index" and split == "held_out":
                found["held_out", task_type] = file.size // ENTRY.size
        return found

    def count(self, split: Split, task_type: str) -> int:
        """Number of rows of a task type in a split."""
        index = self._files.get(get_index_name(split, task_type))
        return 0 if index is None else index.size // ENTRY.size

    def read(self, split: Split, task_type: str, index: int) -> TaskRecord:
        """Row `index` of a task type in a split.

        Raises OperatorError("no_row") where there is none, OperatorError("bad_dataset") where it is not what the index
        says, TransientError where it has to be fetched and cannot be had now.
        """
        if not 0 <= index < self.count(split, task_type):
            raise OperatorError(
                "no_row",
                f"the data set {self.digest} has {self.count(split, task_type)} {split} rows of type {task_type}, there"
                f" is no row {index}",
                fix="Name a row from 0 on that covey tasks check counts",
            )
        name = get_index_name(split, task_type)
        place = f"row {index} of {name}"
        data = self._content.read(self._files[name], index * ENTRY.size, ENTRY.size)
        offset, size = ENTRY.unpack(data)
        row = self.parse(self.read_line(offset, size, place), place)
        if (row.task_type, row.split) != (task_type, split):
            raise self._refuse(f"{place} is a {row.split} row of type {row.task_type}")
        return row

    def read_line(self, offset: int, size: int, place: str) -> bytes:
        """The bytes of one row; raise OperatorError("bad_dataset") where they lie outside the rows."""
        rows = self._files[ROWS_FILE]
        if size > MAX_ROW_BYTES or offset + size > rows.size:
            raise self._refuse(f"{place} points at {size} bytes from {offset} on, {ROWS_FILE} has {rows.size}")
        return self._content.read(rows, offset, size)

    def parse(self, data: bytes, place: str) -> TaskRecord:
        """The row of some bytes; raise OperatorError("bad_dataset")."""
        try:
            return TaskRecord.from_bytes(data)
        except ValueError as error:
            raise self._refuse(f"{place} does not parse: {error}") from error

    def read_index(self, split: Split, task_type: str) -> bytes:
        """All entries of an index."""
        file = self._files[get_index_name(split, task_type)]
        return self._content.read(file, 0, file.size)

    def _refuse(self, message: str) -> OperatorError:
        return build_damaged(f"the data set {self.digest} is wrong: {message}")


class Folder:
    """Serves the files of a data set's folder.  Any thread may read.

    A shard is hashed when it is read for the first time: a prompt from a damaged copy would cost a worker its stake.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hashed: set[Hash] = set()

    def read(self, file: File, offset: int, size: int) -> bytes:
        """Part of a file; raise OperatorError("bad_dataset") where the bytes are not those of the manifest."""
        for number in range(offset // DATA_SHARD_BYTES, -(-(offset + size) // DATA_SHARD_BYTES)):
            if file.shards[number].sha256 not in self._hashed:
                self.read_shard(file, number)
        return self._read(file, offset, size)

    def read_shard(self, file: File, number: int) -> bytes:
        """All bytes of a shard, hashed again; raise OperatorError("bad_dataset")."""
        shard, start = file.shards[number], number * DATA_SHARD_BYTES
        data = self._read(file, start, shard.size)
        if canonical.sha256(data) != shard.sha256:
            raise build_damaged(f"shard {number} of {self.folder / file.name}, from byte {start} on, is damaged")
        self._hashed.add(shard.sha256)
        return data

    def _read(self, file: File, offset: int, size: int) -> bytes:
        path = self.folder / file.name
        try:
            with path.open("rb", buffering=0) as opened:
                data = os.pread(opened.fileno(), size, offset)
        except OSError as error:
            raise build_damaged(f"{path} cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise build_damaged(f"{path} is shorter than its manifest says")
        return data


def open_folder(folder: Path) -> DataSet:
    """The data set of a folder, whose bytes are hashed when they are read.

    Raises OperatorError("no_dataset") where there is none, OperatorError("bad_dataset").
    """
    data = read_manifest_bytes(folder)
    digest = canonical.sha256(data)
    try:
        manifest = DatasetManifest.from_bytes(data, digest)
    except ProtocolError as error:
        raise build_damaged(f"{folder / MANIFEST_FILE}: {error.message}") from error
    for file in manifest.files:
        path = folder / file.name
        size = path.stat().st_size if path.is_file() else None
        if size != file.size:
            there = "is missing" if size is None else f"has {size} bytes"
            raise build_damaged(f"{path} {there}, its manifest says {file.size} bytes")
    return DataSet(manifest, digest, Folder(folder))


def read_manifest_bytes(folder: Path) -> bytes:
    """The bytes of a folder's manifest; raise OperatorError("no_dataset")."""
    try:
        with (folder / MANIFEST_FILE).open("rb") as file:
            return file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise OperatorError(
            "no_dataset", f"{folder} is not the folder of a data set", fix="Make one with covey tasks import"
        ) from error


def build_damaged(message: str) -> OperatorError:
    """The error of a data set whose bytes are not what its manifest or its indexes say."""
    return OperatorError("bad_dataset", message, fix="Import or copy the data set again; covey tasks check checks it")
