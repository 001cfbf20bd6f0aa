"""Delta files, which encode the image of a child policy relative to the image of its parent.

An image is the bytes of all tensors in the order of a `PolicyRecord`, so it is the weights file without its header.
Consecutive tensors of one dtype form a section. Each section is cut into blocks, which are encoded independently. A
block is treated as bits, so every dtype has lossless deltas.

    format      4 bytes: CVD1
    count       u32: number of blocks
    lengths     u32 for each block: bytes of the encoded block
    blocks      each begins with one byte for its method

All numbers are little endian. `encode_image` writes a file, and `DeltaFile` reads one from a peer.
"""

import itertools
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey.errors import ProtocolError
from covey.protocol.policy_record import PolicyRecord
from covey.shardcast.delta import block_codec

if TYPE_CHECKING:
    from pyarrow import Codec

Octets = NDArray[np.uint8]

BLOCK_BYTES = 2 * block_codec.BLOCK_VALUES
"""Size of a block in bytes. The last block of a section may be shorter."""
WORTHWHILE = 0.5
"""Share of a block's size. If class gaps need at most this share, no other method is tried."""
_FORMAT = b"CVD1"
_START = struct.Struct("<4sI")
_ZSTD_LEVEL = 1
_COMPARED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """Part of an image that is encoded independently. Example: ImageBlock(offset=0, size=8 << 20, is_bfloat16=True)."""

    offset: int
    """Index of the block's first byte in the image."""
    size: int
    """Size in bytes, from 1 to BLOCK_BYTES."""
    is_bfloat16: bool
    """Whether the block contains bfloat16 values, which have the smallest deltas."""

    def cut(self, image: Octets) -> Octets:
        """Return the bytes of this block in `image`, as a view."""
        return image[self.offset : self.offset + self.size]


class Method(IntEnum):
    """How a block of the child is encoded."""

    SAME = 0
    """The block equals the parent's. No data follows."""
    CLASS_GAPS = 1
    """Encoding of `block_codec`, for bfloat16 values."""
    XOR = 2
    """XOR of the parent's and the child's block, compressed with zstd."""
    RAW = 3
    """The child's block as it is."""


def list_blocks(record: PolicyRecord) -> tuple[ImageBlock, ...]:
    """Return the blocks of an image with the layout of this record, in order."""
    blocks, offset = [], 0
    for dtype, rows in itertools.groupby(record.tensors, key=lambda row: row.dtype):
        end = offset + sum(row.size for row in rows)
        for start in range(offset, end, BLOCK_BYTES):
            blocks.append(ImageBlock(start, min(BLOCK_BYTES, end - start), dtype == "BF16"))
        offset = end
    return tuple(blocks)


def compute_max_bytes(blocks: Sequence[ImageBlock]) -> int:
    """Return the maximum size in bytes of a delta file with these blocks. A larger file is never valid."""
    return _START.size + sum(4 + 1 + block.size for block in blocks)


def encode_image(
    parent: Octets,
    child: Octets,
    *,
    blocks: Sequence[ImageBlock],
    file: BinaryIO,
    threads: int = 1,
    report: Callable[[int], None] | None = None,
) -> int:
    """Write the delta between two images, uint8[size], to a seekable file. Return the size of the delta in bytes.

    At most 2 * `threads` encoded blocks are in memory. `report`, if given, is called after each block with the number
    of blocks written so far.
    """
    size = sum(block.size for block in blocks)
    if not len(parent) == len(child) == size:
        raise ValueError(f"arrays of {len(parent)} and {len(child)} bytes are not images of {size} bytes")
    start, lengths = file.tell(), np.zeros(len(blocks), "<u4")
    file.write(_START.pack(_FORMAT, len(blocks)) + lengths.tobytes())
    for index, coded in enumerate(_encode_blocks(parent, child, blocks=blocks, threads=threads)):
        file.write(coded)
        lengths[index] = len(coded)
        if report:
            report(index + 1)
    end = file.tell()
    file.seek(start + _START.size)
    file.write(lengths.tobytes())
    file.seek(end)
    return end - start


class DeltaFile:
    """A delta file from a peer, which may be hostile.

    Example: `DeltaFile(data, blocks).apply(0, parent_block, child_block)`. Blocks can be applied in any order and from
    several threads.
    """

    def __init__(self, data: bytes | memoryview, blocks: Sequence[ImageBlock]) -> None:
        """Raise ProtocolError("bad_delta") unless the file's header matches `blocks` and the size of `data`."""
        self._data = memoryview(data).cast("B")
        self._blocks = tuple(blocks)
        first = _START.size + 4 * len(blocks)
        if len(self._data) < first or self._data[: _START.size] != _START.pack(_FORMAT, len(blocks)):
            raise _refuse(f"a file of {len(self._data)} bytes is not a delta of {len(blocks)} blocks")
        lengths = np.frombuffer(self._data, "<u4", len(blocks), _START.size).astype(np.int64)
        if (lengths < 1).any() or (lengths > [block.size + 1 for block in blocks]).any():
            raise _refuse("an encoded block is empty or larger than the block itself")
        self._offsets: list[int] = [first, *(first + np.cumsum(lengths)).tolist()]
        if self._offsets[-1] != len(self._data):
            raise _refuse(f"the blocks end at byte {self._offsets[-1]}, but the file has {len(self._data)} bytes")

    def apply(self, index: int, parent: Octets, child: Octets) -> None:
        """Write block `index` of the child to `child`. Both arrays are uint8[size] and may be the same array.

        Raises ProtocolError("bad_delta") if the block is malformed. The content of `child` is then undefined.
        """
        block = self._blocks[index]
        if not len(parent) == len(child) == block.size:
            raise ValueError(f"arrays of {len(parent)} and {len(child)} bytes are not a block of {block.size} bytes")
        coded = self._data[self._offsets[index] : self._offsets[index + 1]]
        _decode_block(coded, parent, child=child, is_bfloat16=block.is_bfloat16)


def _encode_blocks(parent: Octets, child: Octets, *, blocks: Sequence[ImageBlock], threads: int) -> Iterator[bytes]:
    running: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(threads, "delta") as executor:
        for block in blocks:
            if len(running) == 2 * threads:
                yield running.popleft().result()
            parts = block.cut(parent), block.cut(child)
            running.append(executor.submit(_encode_block, *parts, is_bfloat16=block.is_bfloat16))
        while running:
            yield running.popleft().result()


def _encode_block(parent: Octets, child: Octets, *, is_bfloat16: bool) -> bytes:
    if _are_equal(parent, child):
        return bytes([Method.SAME])
    candidates = []
    if is_bfloat16:
        coded = bytes([Method.CLASS_GAPS]) + block_codec.encode(parent.view(np.uint16), child.view(np.uint16))
        if len(coded) <= WORTHWHILE * len(child):
            return coded
        candidates.append(coded)
    codec = _open_zstd()
    candidates.append(bytes([Method.XOR]) + codec.compress((parent ^ child).tobytes(), asbytes=True))
    candidates.append(bytes([Method.RAW]) + child.tobytes())
    return min(candidates, key=len)


def _are_equal(parent: Octets, child: Octets) -> bool:
    """Return whether both arrays are equal. Compares them part by part, because most blocks differ early."""
    starts = range(0, len(parent), _COMPARED_BYTES)
    return all(np.array_equal(parent[i : i + _COMPARED_BYTES], child[i : i + _COMPARED_BYTES]) for i in starts)


def _decode_block(data: memoryview, parent: Octets, *, child: Octets, is_bfloat16: bool) -> None:
    method, coded = data[0], data[1:]
    if method == Method.SAME and not coded:
        child[:] = parent
    elif method == Method.CLASS_GAPS and is_bfloat16:
        block_codec.decode(parent.view(np.uint16), coded, child.view(np.uint16))
    elif method == Method.XOR:
        np.bitwise_xor(parent, _decompress(coded, len(parent)), out=child)
    elif method == Method.RAW and len(coded) == len(child):
        child[:] = np.frombuffer(coded, np.uint8)
    else:
        raise _refuse(f"a block of {len(data)} encoded bytes has the invalid method {method}")


def _decompress(coded: memoryview, size: int) -> Octets:
    try:
        found = _open_zstd().decompress(coded, decompressed_size=size, asbytes=True)
    except (OSError, ValueError) as error:  # pyarrow's own errors are subclasses of these
        raise _refuse(f"a block is not valid zstd: {error}") from error
    if len(found) != size:
        raise _refuse(f"a block decompresses to {len(found)} bytes instead of {size}")
    return np.frombuffer(found, np.uint8)


def _refuse(message: str) -> ProtocolError:
    return ProtocolError("bad_delta", message)


def _open_zstd() -> "Codec":
    # Imported at first use, because pyarrow starts a thread, and a process that imports this module may be forked.
    import pyarrow as pa

    return pa.Codec("zstd", compression_level=_ZSTD_LEVEL)
