"""Frames of bytes on a pipe or socket: an 8-byte length, then the bytes. Uses only the standard library."""

from __future__ import annotations

import os
import struct

FRAME = struct.Struct(">Q")
"""Header of a frame: its length in bytes."""


def read_frame(descriptor: int, *, max_bytes: int | None = None) -> bytes | None:
    """Return the next frame, or None at the end of the input. Raises ValueError if it exceeds `max_bytes`."""
    header = _read_exactly(descriptor, FRAME.size)
    if header is None:
        return None
    (size,) = FRAME.unpack(header)
    if max_bytes is not None and size > max_bytes:
        raise ValueError(f"a frame has {size} bytes, but at most {max_bytes} are allowed")
    return _read_exactly(descriptor, size)


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < size:
        piece = os.read(descriptor, min(size - len(pieces), 1 << 20))
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
