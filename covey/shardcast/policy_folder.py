"""Files of a policy in a folder that engines load: weights, configuration, tokenizer and record."""

import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from covey.errors import ProtocolError
from covey.protocol.ids import Hash
from covey.protocol.pieces import compute_digest
from covey.protocol.policy_record import RECORD_FILE, WEIGHTS_FILE, PolicyRecord, TensorRow, build_header
from covey.shardcast.delta.image_codec import BLOCK_BYTES, DeltaFile, Octets, list_blocks


def map_weights(path: Path, rows: Sequence[TensorRow]) -> Octets:
    """Return the bytes of all tensors in a weights file, uint8[size], mapped into memory for reading.

    Raises ProtocolError("damaged_policy") if the size or the header of the file does not match these tensors.
    """
    header = build_header(tuple(rows))
    size = len(header) + sum(row.size for row in rows)
    try:
        mapped: Octets = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise ProtocolError("damaged_policy", f"{path} cannot be read: {error}") from error
    if len(mapped) != size or mapped[: len(header)].tobytes() != header:
        raise ProtocolError("damaged_policy", f"the tensors in {path} do not match its record")
    return mapped[len(header) :]


def read_step(folder: Path) -> int:
    """Return the step in the record of a downloaded policy. Raises ProtocolError("damaged_policy") if that fails."""
    try:
        return int(json.loads((folder / RECORD_FILE).read_bytes())["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProtocolError("damaged_policy", f"{folder / RECORD_FILE} cannot be read: {error}") from error


def find_damage(folder: Path, record_hash: Hash, *, threads: int) -> str:
    """Hash all files of a downloaded policy and compare them with the record that has this hash.

    Returns the first difference, or an empty string if there is none.
    """
    try:
        record = PolicyRecord.from_bytes((folder / RECORD_FILE).read_bytes(), record_hash)
        for row in record.files:
            data = (folder / row.name).read_bytes()
            if len(data) != row.size or compute_digest(data) != row.digest:
                return f"{folder / row.name} does not match the digest in its record"
        image = map_weights(folder / WEIGHTS_FILE, record.tensors)
    except OSError as error:
        return f"a file of {folder} cannot be read: {error}"
    except ProtocolError as error:
        return error.message
    wrong = find_wrong_tensor(record.tensors, image, record=record, threads=threads)
    return f"the tensor {wrong.name} in {folder} does not match the digest in its record" if wrong else ""


def find_wrong_tensor(
    rows: Iterable[TensorRow], image: Octets, *, record: PolicyRecord, threads: int
) -> TensorRow | None:
    """Return a tensor among `rows` that does not match its digest, or None if all match."""
    offsets = dict(zip((row.name for row in record.tensors), compute_offsets(record.tensors), strict=True))

    def is_right(row: TensorRow) -> bool:
        start = offsets[row.name]
        return compute_digest(image[start : start + row.size].data) == row.digest

    chosen = list(rows)
    with ThreadPoolExecutor(threads, "digests") as executor:
        results = list(executor.map(is_right, chosen))
    return next((row for row, right in zip(chosen, results, strict=True) if not right), None)


def compute_offsets(rows: Sequence[TensorRow]) -> list[int]:
    """Return the index of the first byte of each tensor in the image."""
    sizes = np.array([row.size for row in rows], np.int64)
    result: list[int] = (np.cumsum(sizes) - sizes).tolist()
    return result


def write_child(base: Octets, deltas: Sequence[Path], target: Path, *, record: PolicyRecord, threads: int) -> None:
    """Write the weights file that results from a base when the deltas are applied in this order.

    Each block is read and written once, regardless of the number of deltas. Raises ProtocolError("bad_delta") if a
    delta is malformed. The caller must check the digests.
    """
    blocks, start = list_blocks(record), len(record.header)
    files = [DeltaFile(np.memmap(path, np.uint8, mode="r").data, blocks) for path in deltas]
    with target.open("wb", buffering=0) as opened:
        output = opened.fileno()
        write_fully(output, memoryview(record.header), 0)

        def write(indices: range) -> None:
            buffer = np.empty(BLOCK_BYTES, np.uint8)
            for index in indices:
                block = blocks[index]
                child, parent = buffer[: block.size], block.cut(base)
                for file in files:
                    file.apply(index, parent, child)
                    parent = child
                write_fully(output, child.data, start + block.offset)

        with ThreadPoolExecutor(threads, "deltas") as executor:
            list(executor.map(write, [range(first, len(blocks), threads) for first in range(threads)]))


def write_fully(file: int, data: memoryview, offset: int) -> None:
    """Write all of `data` to a file descriptor. Raises OSError if the disk is full."""
    while data:
        size = os.pwrite(file, data, offset)
        data, offset = data[size:], offset + size
