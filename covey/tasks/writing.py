"""Writes the folder of a data set: rows, indexes and manifest, which are hashed while they are written.

    rows.jsonl                               one canonical JSON row per line
    train.TYPE.index, held_out.TYPE.index    12 bytes per row of that split and task type: offset (u64) and length (u32)
                                             in rows.jsonl, little endian, without the newline
    manifest.json                            names and sizes of all files, and the hashes of their pieces

The BLAKE3 hash of the manifest is the digest of the data set. Equal rows in the same order produce the same digest. The
finished folder is moved into place by one rename, so an incomplete data set is never visible.
"""

import hashlib
import shutil
import struct
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from blake3 import blake3

from covey.environments.base import Split
from covey.errors import OperatorError
from covey.protocol import canonical
from covey.protocol.dataset_manifest import (
    DATA_PIECE_BYTES,
    MAX_DATASET_MANIFEST_BYTES,
    DatasetFile,
    DatasetManifest,
)
from covey.protocol.ids import Hash, hash_from_bytes
from covey.runtime.files import sync, write_atomically
from covey.tasks.dataset_row import TaskRecord

ROWS_FILE, MANIFEST_FILE = "rows.jsonl", "manifest.json"
ENTRY = struct.Struct("<QI")
"""Format of one index entry: offset and length of a row in bytes."""


def get_index_name(split: Split, task_type: str) -> str:
    """Return the name of the index file of a split and task type. Example: "train.math.index"."""
    return f"{split}.{task_type}.index"


class HashedFile:
    """A file whose pieces are hashed while it is written."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        """Number of bytes written so far."""
        self._path = path
        self._file: BinaryIO = path.open("xb")
        self._piece, self._piece_size = blake3(), 0
        self._hashes: list[Hash] = []

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)
        view = memoryview(data)
        while view:
            part = view[: DATA_PIECE_BYTES - self._piece_size]
            self._piece.update(part)
            self._piece_size += len(part)
            view = view[len(part) :]
            if self._piece_size == DATA_PIECE_BYTES:
                self._cut()

    def finish(self) -> DatasetFile:
        """Close the file, flush it to disk and describe it."""
        self.close()
        sync(self._path)
        if self._piece_size:
            self._cut()
        return DatasetFile(name=self._path.name, size=self.size, hashes=tuple(self._hashes))

    def close(self) -> None:
        self._file.close()

    def _cut(self) -> None:
        self._hashes.append(hash_from_bytes(self._piece.digest()))
        self._piece, self._piece_size = blake3(), 0


class DataSetWriter:
    """Writes one data set. Leaving the `with` block without `finish` removes everything written.

    Example: `with DataSetWriter(Path("tasks")) as writer: writer.add(row); digest = writer.finish()`.
    """

    def __init__(self, folder: Path) -> None:
        """Create a writer for a folder. Raises OperatorError("dataset_exists") if it exists and is not a data set."""
        self._folder = folder.absolute()
        self._draft = self._folder.with_name(self._folder.name + ".part")
        if self._folder.exists() and not (self._folder / MANIFEST_FILE).is_file():
            raise OperatorError(
                "dataset_exists",
                f"the folder {folder} exists but is not a data set",
                fix="Choose a new folder with --out",
            )
        self.counts: Counter[tuple[Split, str]] = Counter()
        """Number of rows written, by split and task type."""
        self.duplicates = 0
        """Number of rows skipped because an earlier row has the same prompt and choices."""
        self._seen: set[bytes] = set()
        self._indexes: dict[str, HashedFile] = {}

    def __enter__(self) -> Self:
        try:
            shutil.rmtree(self._draft, ignore_errors=True)  # a draft that a killed process left behind
            self._draft.mkdir(parents=True)
            self._rows = HashedFile(self._draft / ROWS_FILE)
        except OSError as error:
            raise _refuse_folder(self._folder, error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for file in (self._rows, *self._indexes.values()):
            try:
                file.close()
            except OSError:  # a full disk, which `error` has already reported
                continue
        shutil.rmtree(self._draft, ignore_errors=True)
        if isinstance(error, OSError):
            raise _refuse_folder(self._folder, error) from error

    def add(self, row: TaskRecord) -> bool:
        """Write a row, unless an earlier row has the same prompt and choices. Return whether it was written."""
        question = {"prompt": row.prompt, "choices": row.verification_info.get("choices")}
        mark = hashlib.blake2b(canonical.to_bytes(question), digest_size=16).digest()
        if mark in self._seen:
            self.duplicates += 1
            return False
        self._seen.add(mark)
        split, data = row.split, row.to_bytes()
        name = get_index_name(split, row.task_type)
        if name not in self._indexes:
            self._indexes[name] = HashedFile(self._draft / name)
        self._indexes[name].write(ENTRY.pack(self._rows.size, len(data)))
        self._rows.write(data + b"\n")
        self.counts[split, row.task_type] += 1
        return True

    def finish(self) -> Hash:
        """Move the folder to its final path and return the digest of the data set.

        Raises OperatorError("empty_dataset") if there are no rows, OperatorError("dataset_exists") if a different data
        set is at that path, and OperatorError("dataset_too_large") if the manifest would be too large.
        """
        if not self._indexes:
            raise OperatorError(
                "empty_dataset", "the sources contain no row to import", fix="Use sources that contain rows"
            )
        files = sorted((file.finish() for file in (self._rows, *self._indexes.values())), key=lambda file: file.name)
        manifest = DatasetManifest(files=tuple(files))
        data, digest = manifest.to_bytes(), manifest.digest
        if len(data) > MAX_DATASET_MANIFEST_BYTES:
            raise OperatorError(
                "dataset_too_large",
                f"the manifest of the data set has {len(data)} bytes, but at most {MAX_DATASET_MANIFEST_BYTES} are "
                "allowed",
                fix="Split the rows into several data sets, and combine them in a mixture",
            )
        write_atomically(self._draft / MANIFEST_FILE, data)
        if self._folder.exists():
            self._require_same(data)
            old = self._draft.with_name(f"{self._draft.name}.old")
            shutil.rmtree(old, ignore_errors=True)  # a folder that a killed process left behind
            self._folder.rename(old)  # replaced although it is the same data set, because its rows may be damaged
            self._draft.rename(self._folder)
            shutil.rmtree(old)
        else:
            self._draft.rename(self._folder)
        sync(self._folder.parent)
        return digest

    def _require_same(self, data: bytes) -> None:
        if (self._folder / MANIFEST_FILE).read_bytes() != data:
            raise OperatorError(
                "dataset_exists",
                f"the folder {self._folder} contains a data set with different rows",
                fix="Choose a new folder with --out, or remove the old one",
            )


def _refuse_folder(folder: Path, error: OSError) -> OperatorError:
    message = f"the data set folder {folder} cannot be written: {error.strerror or error}"
    return OperatorError("no_folder", message, fix="Choose a writable folder with enough free space")
