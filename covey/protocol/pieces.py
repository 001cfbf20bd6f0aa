"""Pieces: the units in which policies and data sets travel. Each is named by its BLAKE3 hash and never changes.

A tensor or file of at most PIECE_BYTES has the hash of its bytes as its digest. A larger one is cut into pieces of
PIECE_BYTES, the last of which may be smaller, and its digest is the hash of the pieces' hashes. Verified pieces
therefore need not be hashed again as a whole (docs/decisions/045-two-records.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blake3 import blake3

from covey.protocol.ids import Hash, hash_from_bytes, hash_to_bytes

PIECE_BYTES = 4 << 20
"""Maximum size of a piece in bytes. The digests in policy records depend on it."""
Octets = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Piece:
    """Size and hash of some bytes that travel together. Example: Piece(4 << 20, Hash("0x5f..."))."""

    size: int
    """Size in bytes, from 1 to PIECE_BYTES."""
    digest: Hash
    """BLAKE3 hash of the bytes."""


def compute_blake3(data: Octets) -> Hash:
    """Return the BLAKE3 hash of `data`."""
    return hash_from_bytes(blake3(data).digest())


def cut(size: int, piece_bytes: int = PIECE_BYTES) -> Iterator[int]:
    """Yield the sizes of the pieces of `size` bytes. All are `piece_bytes`, except that the last may be smaller."""
    for start in range(0, size, piece_bytes):
        yield min(piece_bytes, size - start)


def build_pieces(data: memoryview, piece_bytes: int = PIECE_BYTES) -> tuple[Piece, ...]:
    """Return the pieces of `data`, a view of single bytes."""
    pieces, start = [], 0
    for size in cut(len(data), piece_bytes):
        pieces.append(Piece(size, compute_blake3(data[start : start + size])))
        start += size
    return tuple(pieces)


def combine(digests: Sequence[Hash]) -> Hash:
    """Return the digest of a tensor or file from the hashes of its pieces. Without a piece it is the hash of b""."""
    if len(digests) == 1:
        return digests[0]
    return compute_blake3(b"".join(map(hash_to_bytes, digests)))


def compute_digest(data: Octets) -> Hash:
    """Return the digest of a tensor or file with the bytes `data`."""
    return combine([piece.digest for piece in build_pieces(memoryview(data).cast("B"))])
