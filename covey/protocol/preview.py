"""The preview of an export: pieces of a policy's weights that are final while the rest is still being written.

    row     hash of the piece (32 bytes), its size (u32), and its position in the weights file (u64)

All numbers are little endian. A row is added when its piece has been written, so a later preview of the same export
begins with the earlier one. Nobody signs a preview. What was fetched by it only counts if a manifest names it.
"""

import itertools
import struct
from typing import NamedTuple

from covey.errors import ProtocolError
from covey.protocol.ids import hash_from_bytes, hash_to_bytes
from covey.protocol.pieces import PIECE_BYTES, Piece

MAX_PREVIEW_BYTES = 4 << 20
"""Maximum size of a preview. It suffices for 390 GB in pieces of PIECE_BYTES. Later pieces are not previewed."""
_ROW = struct.Struct("<32sIQ")
ROW_BYTES = _ROW.size
"""Size of a row in bytes."""
_MAX_END = 1 << 50


class PreviewRow(NamedTuple):
    """A piece of a weights file. Example: PreviewRow(Piece(4 << 20, Hash("0x5f...")), 4096)."""

    piece: Piece
    offset: int
    """Position of the first byte in the weights file, whose header precedes the pieces."""

    @property
    def end(self) -> int:
        """Position after the last byte."""
        return self.offset + self.piece.size

    def to_bytes(self) -> bytes:
        """Encode the row as the module describes."""
        return _ROW.pack(hash_to_bytes(self.piece.digest), self.piece.size, self.offset)


def parse_preview(data: bytes) -> tuple[PreviewRow, ...]:
    """Parse untrusted bytes.

    Raises ProtocolError("bad_preview") unless they are rows whose pieces lie in the file without overlapping.
    """
    if len(data) > MAX_PREVIEW_BYTES or len(data) % _ROW.size:
        raise _refuse(f"it has {len(data)} bytes")
    rows = tuple(
        PreviewRow(Piece(size, hash_from_bytes(digest)), offset) for digest, size, offset in _ROW.iter_unpack(data)
    )
    if not all(1 <= row.piece.size <= PIECE_BYTES and row.end <= _MAX_END for row in rows):
        raise _refuse("a piece is empty, too large or too far away")
    ordered = sorted(rows, key=lambda row: row.offset)
    if any(row.end > later.offset for row, later in itertools.pairwise(ordered)):
        raise _refuse("two pieces overlap")
    return rows


def get_preview_path(pool: int) -> str:
    """Return the URL path of the preview of a pool's export at an origin or a relay."""
    return f"/previews/{pool}"


def _refuse(reason: str) -> ProtocolError:
    return ProtocolError("bad_preview", f"the preview of an export is invalid: {reason}", status=502)
