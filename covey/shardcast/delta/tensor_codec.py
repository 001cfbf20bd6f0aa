"""The bytes by which a tensor of a child policy follows from the parent's tensor, block by block.

A block begins with one byte for its method, and the encoder tries the methods from the smallest expected result on. Any
dtype has lossless deltas, because the tensor is treated as bits.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from covey.errors import ProtocolError
from covey.shardcast.delta import block_codec
from covey.shardcast.delta.class_gaps import Bits

Octets = NDArray[np.uint8]

BLOCK_BYTES = 2 * block_codec.BLOCK_VALUES
"""Number of bytes of a tensor in one block. The last block may be shorter."""
WORTHWHILE = 0.5
"""Share of a block's size up to which class gaps are used without trying another method."""
_ZSTD_LEVEL = 1


class Method(IntEnum):
    """How a block of the child follows from the parent's."""

    SAME = 0
    """The blocks are equal. Nothing follows."""
    CLASS_GAPS = 1
    """`block_codec`, for bfloat16 values."""
    XOR = 2
    """The zstd-compressed XOR of both blocks."""
    RAW = 3
    """The child's block itself."""


def encode(parent: Octets, child: Octets, *, is_bfloat16: bool) -> Iterator[bytes]:
    """Yield the encoded blocks of a tensor. Both are its bytes, uint8[size], in little endian."""
    for first in range(0, len(parent), BLOCK_BYTES):
        yield _encode_block(parent[first : first + BLOCK_BYTES], child[first : first + BLOCK_BYTES], is_bfloat16)


def decode(parent: Octets, blocks: Iterable[bytes], child: Octets, *, is_bfloat16: bool) -> None:
    """Write the tensor's bytes to `child`, uint8[size]. `parent` may be the same array, for a change in place.

    Raises ProtocolError("bad_delta") if a block is malformed or their number is wrong. `child` is then undefined.
    """
    starts = range(0, len(parent), BLOCK_BYTES)
    remaining = iter(blocks)
    for first in starts:
        data = next(remaining, None)
        if data is None:
            raise ProtocolError("bad_delta", f"a tensor has fewer than {len(starts)} blocks")
        _decode_block(parent[first : first + BLOCK_BYTES], data, child[first : first + BLOCK_BYTES], is_bfloat16)
    if next(remaining, None) is not None:
        raise ProtocolError("bad_delta", f"a tensor has more than {len(starts)} blocks")


def _encode_block(parent: Octets, child: Octets, is_bfloat16: bool) -> bytes:
    if np.array_equal(parent, child):
        return bytes([Method.SAME])
    best = bytes([Method.RAW]) + child.tobytes()
    if is_bfloat16:
        coded = bytes([Method.CLASS_GAPS]) + block_codec.encode(_to_bits(parent), _to_bits(child))
        if len(coded) <= WORTHWHILE * len(best):
            return coded
        best = min(best, coded, key=len)
    codec = pa.Codec("zstd", compression_level=_ZSTD_LEVEL)
    compressed: bytes = codec.compress((parent ^ child).tobytes(), asbytes=True)
    return min(best, bytes([Method.XOR]) + compressed, key=len)


def _decode_block(parent: Octets, data: bytes, child: Octets, is_bfloat16: bool) -> None:
    method, coded = data[:1], memoryview(data)[1:]
    if method == bytes([Method.SAME]) and not coded:
        child[:] = parent
    elif method == bytes([Method.CLASS_GAPS]) and is_bfloat16:
        block_codec.decode(_to_bits(parent), coded, _to_bits(child))
    elif method == bytes([Method.XOR]):
        child[:] = parent ^ _decompress(coded, len(parent))
    elif method == bytes([Method.RAW]) and len(coded) == len(child):
        child[:] = np.frombuffer(coded, np.uint8)
    else:
        raise ProtocolError("bad_delta", f"a block of {len(data)} bytes has method {data[:1].hex() or 'none'}")


def _decompress(coded: memoryview, size: int) -> Octets:
    try:
        found = pa.Codec("zstd").decompress(coded, decompressed_size=size, asbytes=True)
    except (OSError, ValueError) as error:  # pyarrow's own errors are subclasses of these
        raise ProtocolError("bad_delta", f"a block is not valid zstd: {error}") from error
    if len(found) != size:
        raise ProtocolError("bad_delta", f"a block decompresses to {len(found)} bytes instead of {size}")
    return np.frombuffer(found, np.uint8)


def _to_bits(octets: Octets) -> Bits:
    return octets.view("<u2")
