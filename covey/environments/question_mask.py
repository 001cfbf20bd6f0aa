"""The compact form of a filtered pool's questions: which of the first so many stay, one bit each.

It stands in the pool's parameters, so everybody draws the same prompt from the parameters alone
(docs/decisions/019-filtered-tasks.md).  Written by `covey tasks filter`, read by environments.
"""

import base64
from collections.abc import Collection


def pack_kept(numbers: Collection[int]) -> str:
    """Question numbers, 0 or more -> base64; number n is bit n % 8, from the highest, of byte n // 8."""
    data = bytearray(max(numbers, default=-1) // 8 + 1)
    for number in numbers:
        data[number // 8] |= 0x80 >> number % 8
    return base64.b64encode(data).decode()


def unpack_kept(text: str) -> list[int]:
    """What `pack_kept` was given, ascending; raise ValueError for any other text."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError("kept is not base64") from error
    numbers = [8 * place + bit for place, byte in enumerate(data) for bit in range(8) if byte & 0x80 >> bit]
    if pack_kept(numbers) != text:
        raise ValueError("kept has bytes that say nothing")
    return numbers
