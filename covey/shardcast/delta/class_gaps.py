"""Changes between two arrays of bfloat16 bits, as gaps and differences within the classes of the parent's exponent.

The class of a value is its exponent, 0 .. 255. A gap is the number of unchanged values of the same class since the last
change of this class. A difference counts the representable values between parent and child. `kernels` compiles these
functions, which only run fast compiled. No arithmetic is done on floats, so NaN, Inf and -0 need no special case.
"""

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Numbers = NDArray[np.int64]

CLASSES = 256
"""Number of exponents of bfloat16."""
NEVER = 1 << 62
"""Gap after the last change of a class."""


def get_rank(bits: np.int64) -> np.int64:
    """Return the position, 0 .. 65535, of bfloat16 bits in the order of the values. -0 comes before 0."""
    return np.int64(bits + 32768 if bits < 32768 else 65535 - bits)


def count_changes(parent: Bits, child: Bits) -> int:
    """Return the number of values that differ."""
    count = 0
    for i in range(len(parent)):
        count += parent[i] != child[i]
    return count


def find_changes(parent: Bits, child: Bits, classes: NDArray[np.uint8], gaps: Numbers, differences: Numbers) -> int:
    """Write class, gap and difference of each change, in the order of the values. Return the number of changes.

    The caller counts the changes first, because arrays for as many changes as values would take longer to allocate.

    A difference of d > 0 is written as 2d - 2, and one of d < 0 as -2d - 1, so that small ones have small numbers.
    """
    seen, last = np.zeros(CLASSES, np.int64), np.full(CLASSES, -1, np.int64)
    count = 0
    for i in range(len(parent)):
        kind = (parent[i] >> 7) & 255
        if parent[i] != child[i]:
            moved = get_rank(np.int64(child[i])) - get_rank(np.int64(parent[i]))
            classes[count] = kind
            gaps[count] = seen[kind] - last[kind] - 1
            differences[count] = 2 * moved - 2 if moved > 0 else -2 * moved - 1
            last[kind] = seen[kind]
            count += 1
        seen[kind] += 1
    return count


def sort_by_class(classes: NDArray[np.uint8], values: Numbers, counts: Numbers, ordered: Numbers) -> None:
    """Write `values` to `ordered`, class by class, otherwise in the same order. `counts` are the classes' sizes."""
    ends = np.zeros(CLASSES, np.int64)
    for kind in range(1, CLASSES):
        ends[kind] = ends[kind - 1] + counts[kind - 1]
    for i in range(len(classes)):
        kind = classes[i]
        ordered[ends[kind]] = values[i]
        ends[kind] += 1


def apply_changes(parent: Bits, gaps: Numbers, differences: Numbers, counts: Numbers, child: Bits) -> int:
    """Write the child, and return the number of changes applied. Returns -1 if a difference leaves bfloat16.

    `gaps` and `differences` are sorted by class, and `counts` has the number of changes in each class. The result is
    smaller than the number of changes if a gap leads beyond the last value of its class.
    """
    places, ends = np.zeros(CLASSES, np.int64), np.zeros(CLASSES, np.int64)
    left = np.full(CLASSES, NEVER, np.int64)
    first = 0
    for kind in range(CLASSES):
        places[kind] = first
        if counts[kind] > 0:
            left[kind] = gaps[first]
        first += counts[kind]
        ends[kind] = first
    applied = 0
    for i in range(len(parent)):
        bits = parent[i]
        kind = (bits >> 7) & 255
        if left[kind] == 0:
            place = places[kind]
            coded = differences[place]
            rank = get_rank(np.int64(bits)) + (coded // 2 + 1 if coded % 2 == 0 else -(coded + 1) // 2)
            if rank < 0 or rank > 65535:
                return -1
            bits = np.uint16(rank - 32768 if rank >= 32768 else 65535 - rank)
            place += 1
            places[kind] = place
            left[kind] = gaps[place] if place < ends[kind] else NEVER
            applied += 1
        else:
            left[kind] -= 1
        child[i] = bits
    return applied
