"""Writes and describes a trainer's policies. Weights are hashed while they are written and are not read again.

The folder of an exported policy contains the weights, configuration and tokenizer files, and PIECES_FILE with the
hashes of the weights' pieces.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from covey.errors import ProtocolError
from covey.protocol.ids import ZERO_HASH, Hash, hash_from_bytes, hash_to_bytes
from covey.protocol.pieces import Piece, build_pieces, combine, compute_blake3, compute_digest
from covey.protocol.policy_record import (
    PIECES_FILE,
    RECORD_FILE,
    WEIGHTS_FILE,
    FileRow,
    PolicyRecord,
    TensorRow,
    build_header,
    is_allowed_file,
)
from covey.protocol.transport import DELTA, WEIGHTS, Run, TransportManifest, TransportObject, list_runs
from covey.shardcast.export_preview import PreviewWriter
from covey.shardcast.piece_files import FileStamp, get_stamp
from covey.shardcast.policy_folder import map_weights, write_fully

_MAX_HEADER_BYTES = 64 << 20

ReadTensor = Callable[[TensorRow], memoryview]
"""Function that returns the bytes of a tensor, little endian and in row-major order. Several threads call it."""
OpenPreview = Callable[[Path], PreviewWriter | None]
"""Function that starts to serve the pieces of a weights file while it is written. It returns None if the file has no
preview.
"""


def build_row(name: str, dtype: str, shape: Sequence[int]) -> TensorRow:
    """Return the row of a tensor whose digest is not known yet. `dtype` is a safetensors name, such as "BF16"."""
    return TensorRow(name=name, dtype=dtype, shape=tuple(shape), digest=ZERO_HASH)


def write_weights(
    folder: Path,
    rows: Sequence[TensorRow],
    read: ReadTensor,
    *,
    threads: int,
    open_preview: OpenPreview = lambda _: None,
) -> None:
    """Write the weights of a policy and the hashes of their pieces. Every byte is read and hashed once.

    `open_preview` is called with the path once the file exists. The preview then receives each piece after it was
    written.
    """
    layout = tuple(sorted(rows, key=lambda row: row.layout_key))
    header, runs = build_header(layout), list(list_runs(layout))
    with (folder / WEIGHTS_FILE).open("wb", buffering=0) as file, ExitStack() as stack:
        write_fully(file.fileno(), memoryview(header), 0)
        preview = open_preview(folder / WEIGHTS_FILE)
        if preview is not None:
            stack.callback(preview.close)

        def write(run: Run, offset: int) -> list[Hash]:
            data = read(run.rows[0]) if len(run.rows) == 1 else memoryview(b"".join(map(read, run.rows)))
            digests = []
            for size in run.sizes:
                piece, data = data[:size], data[size:]
                digests.append(compute_blake3(piece))
                write_fully(file.fileno(), piece, offset)
                if preview is not None:
                    preview.add(Piece(size, digests[-1]), offset)
                offset += size
            return digests

        sizes = [len(header), *(sum(run.sizes) for run in runs)]
        with ThreadPoolExecutor(threads, "export") as executor:
            written = executor.map(write, runs, itertools.accumulate(sizes[:-1]))
            digests = [digest for each in written for digest in each]
    (folder / PIECES_FILE).write_bytes(b"".join(map(hash_to_bytes, digests)))


def build_record(folder: Path, *, pool: int, step: int, parent: Hash) -> PolicyRecord:
    """Return the record of an exported policy. Reads only the tensors that share a piece with others.

    Raises ProtocolError("bad_export") if a file is not what an export writes.
    """
    rows = read_layout(folder)
    weights, known = map_weights(folder / WEIGHTS_FILE, rows), iter(read_pieces(folder, rows))
    tensors, start = [], 0
    for run in list_runs(rows):
        pieces = [next(known) for _ in run.sizes]
        for row in run.rows:
            is_alone = len(run.rows) == 1
            digest = combine(pieces) if is_alone else compute_digest(weights[start : start + row.size].data)
            tensors.append(row.model_copy(update={"digest": digest}))
            start += row.size
    files = tuple(_describe_files(folder))
    return PolicyRecord(pool=pool, step=step, parent=parent, tensors=tuple(tensors), files=files)


def build_anchor(folder: Path, record: PolicyRecord) -> TransportManifest:
    """Return the unsigned manifest of an anchor for an exported policy."""
    digests = iter(read_pieces(folder, record.tensors))
    pieces = [Piece(size, next(digests)) for run in list_runs(record.tensors) for size in run.sizes]
    objects = [TransportObject(name=WEIGHTS, pieces=tuple(pieces))]
    objects += [_build_object(row.name, folder / row.name) for row in record.files]
    return TransportManifest(record=record.compute_hash(), objects=tuple(objects))


def build_delta(delta: Path, folder: Path, *, record: PolicyRecord, base: PolicyRecord) -> TransportManifest:
    """Return the unsigned manifest of a delta. `delta` is the delta file, and `folder` has the exported policy."""
    objects = [_build_object(DELTA, delta)]
    objects += [_build_object(row.name, folder / row.name) for row in record.files if row not in base.files]
    return TransportManifest(record=record.compute_hash(), base=base.compute_hash(), objects=tuple(objects))


def read_layout(folder: Path) -> tuple[TensorRow, ...]:
    """Return the tensors in a weights file, without digests.

    Raises ProtocolError("bad_export") if `write_weights` cannot have written the file.
    """
    path = folder / WEIGHTS_FILE
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _MAX_HEADER_BYTES:
                raise ValueError(f"its header has {size} bytes")
            header = file.read(size)
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        rows = [build_row(name, entry["dtype"], entry["shape"]) for name, entry in entries.items()]
        rows.sort(key=lambda row: row.layout_key)
        if build_header(tuple(rows))[8:] != header:
            raise ValueError("its tensors are not in the order of a policy record")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError("bad_export", f"{path} was not written by a trainer's export: {error}") from error
    return tuple(rows)


def read_pieces(folder: Path, rows: Sequence[TensorRow]) -> list[Hash]:
    """Return the hashes of the pieces of an exported policy's weights. Computes them if PIECES_FILE is missing."""
    count = sum(len(run.sizes) for run in list_runs(rows))
    try:
        data = (folder / PIECES_FILE).read_bytes()
    except FileNotFoundError:
        data = b""
    if len(data) == 32 * count:
        return [hash_from_bytes(data[start : start + 32]) for start in range(0, len(data), 32)]
    return hash_pieces(folder, rows)


def hash_pieces(folder: Path, rows: Sequence[TensorRow], *, threads: int = 1) -> list[Hash]:
    """Hash the weights of an exported policy and return the hashes of their pieces."""
    weights = map_weights(folder / WEIGHTS_FILE, rows)
    sizes = [size for run in list_runs(rows) for size in run.sizes]

    def compute(start: int, size: int) -> Hash:
        return compute_blake3(weights[start : start + size].data)

    with ThreadPoolExecutor(threads, "hashes") as executor:
        return list(executor.map(compute, itertools.accumulate([0, *sizes[:-1]]), sizes))


def is_undamaged(folder: Path, *, threads: int = 1) -> bool:
    """Return whether the weights still match the hashes that were computed when they were written."""
    try:
        rows = read_layout(folder)
        return read_pieces(folder, rows) == hash_pieces(folder, rows, threads=threads)
    except ProtocolError:
        return False


class ExportChecks:
    """Remembers which exported weights matched PIECES_FILE, so that only changed files are hashed again.

    All methods can be called by several threads.
    """

    def __init__(self) -> None:
        self._stamps: dict[Path, tuple[FileStamp, FileStamp]] = {}
        """Stamps of the weights and of PIECES_FILE at the time when they matched, by folder."""

    def record(self, folder: Path) -> None:
        """Remember that this process has just written and hashed the weights in a folder."""
        self._keep(folder, _get_stamps(folder))

    def is_known(self, folder: Path) -> bool:
        """Return whether the weights are known to match PIECES_FILE and have not changed since. Reads no weights."""
        stamps = _get_stamps(folder)
        return stamps is not None and self._stamps.get(folder) == stamps

    def is_undamaged(self, folder: Path, *, threads: int = 1) -> bool:
        """Return whether the weights match PIECES_FILE. Hashes them unless that is known."""
        if self.is_known(folder):
            return True
        stamps = _get_stamps(folder)  # Read before hashing, so that a file that changes meanwhile is hashed again.
        if not is_undamaged(folder, threads=threads):
            return False
        self._keep(folder, stamps)
        return True

    def _keep(self, folder: Path, stamps: tuple[FileStamp, FileStamp] | None) -> None:
        for gone in [path for path in list(self._stamps) if not path.exists()]:
            self._stamps.pop(gone, None)
        if stamps is not None:
            self._stamps[folder] = stamps


def find_export_damage(folder: Path, record_hash: Hash, *, pool: int, step: int, parent: Hash) -> str:
    """Hash all files of an exported policy and compare them with the policy of this record.

    Returns the first difference, or an empty string if there is none.
    """
    try:
        record = build_record(folder, pool=pool, step=step, parent=parent)
    except ProtocolError as error:
        return error.message
    if record.compute_hash() != record_hash:
        return f"the record of {folder} has the hash {record.compute_hash()} instead of {record_hash}"
    return "" if is_undamaged(folder) else f"the weights in {folder} do not match the hashes in {PIECES_FILE}"


def _get_stamps(folder: Path) -> tuple[FileStamp, FileStamp] | None:
    try:
        return get_stamp(folder / WEIGHTS_FILE), get_stamp(folder / PIECES_FILE)
    except FileNotFoundError:
        return None


def _describe_files(folder: Path) -> Iterator[FileRow]:
    for path in sorted(folder.iterdir()):
        if path.name in (WEIGHTS_FILE, PIECES_FILE, RECORD_FILE):
            continue
        if not is_allowed_file(path.name):
            raise ProtocolError("bad_export", f"a policy must not contain the file {path}")
        data = path.read_bytes()
        yield FileRow(name=path.name, size=len(data), digest=compute_digest(data))


def _build_object(name: str, path: Path) -> TransportObject:
    if not path.stat().st_size:
        return TransportObject(name=name, pieces=())
    mapped = np.memmap(path, np.uint8, mode="r")
    return TransportObject(name=name, pieces=build_pieces(mapped.data))
