"""Compact form of the questions that remain in a filtered pool: a bit mask with one bit per question.

The mask is part of the pool's parameters, so every role draws the same prompt from the parameters alone
(docs/decisions/019-filtered-tasks.md). `covey tasks filter` writes it, and environments read it.
"""

import base64
from collections.abc import Collection


def pack_kept(numbers: Collection[int]) -> str:
    """Encode question numbers as a bit mask in base64. Number n is bit n % 8 of byte n // 8, highest bit first."""
    data = bytearray(max(numbers, default=-1) // 8 + 1)
    for number in numbers:
        data[number // 8] |= 0x80 >> number % 8
    return base64.b64encode(data).decode()


def unpack_kept(text: str) -> list[int]:
    """Decode a text from `pack_kept` into ascending question numbers. Raises ValueError for any other text."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError("kept is not valid base64") from error
    numbers = [8 * index + bit for index, byte in enumerate(data) for bit in range(8) if byte & 0x80 >> bit]
    if pack_kept(numbers) != text:
        raise ValueError("kept is not the canonical base64 encoding of a bit mask")
    return numbers
