"""Derives indexes from a drawn integer, and splits questions into training and held-out ones."""

import hashlib
import zlib

HELD_OUT_PART = 8
"""On average, one in this many questions is held out."""


def draw_below(purpose: str, draw: int, size: int, *, attempt: int = 0) -> int:
    """Derive an index from 0 to `size` - 1 from a drawn integer, separately for each `purpose` and `attempt`.

    The modulo bias is below 2**-190 for sizes up to 2**64. Raises ValueError for a negative draw. Example:
    draw_below("target", 2**62 + 5, 4) returns 0, 1, 2 or 3.
    """
    if draw < 0:
        raise ValueError(f"the draw number {draw} is negative")
    digest = hashlib.sha256(f"covey.environment/{purpose}/{draw:x}/{attempt}".encode()).digest()
    return int.from_bytes(digest, "big") % size


def is_held_out(question: str) -> bool:
    """Return whether a prompt belongs to the held-out split. A hash of its text determines the split."""
    return zlib.crc32(question.encode()) % HELD_OUT_PART == 0
