"""Changes between two arrays of bfloat16 bits, as gaps and differences within classes of values.

The class of a value is the exponent, 0 to 255, that it has in the parent. A gap is the number of unchanged values of a
class before a change, counted from the previous change of this class. A difference is the number of representable
values from parent to child. These functions are slow in plain Python, so `kernels` compiles them. No arithmetic is done
on floats, so NaN, Inf and -0 need no special case.
"""

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Numbers = NDArray[np.int64]

CLASSES = 256
"""Number of exponents of bfloat16."""
NEVER = 1 << 62
"""Gap of a class that has no further change."""


def get_rank(bits: np.int64) -> np.int64:
    """Return the position, 0 to 65535, of a bfloat16 bit pattern in the order of the values. -0 comes before 0."""
    return np.int64(bits + 32768 if bits < 32768 else 65535 - bits)


def count_changes(parent: Bits, child: Bits) -> int:
    """Return the number of positions at which parent and child differ."""
    count = 0
    for i in range(len(parent)):
        count += parent[i] != child[i]
    return count


def find_changes(parent: Bits, child: Bits, classes: NDArray[np.uint8], gaps: Numbers, differences: Numbers) -> int:
    """Write the class, gap and difference of each change, in the order of the positions. Return the number of changes.

    The caller counts the changes first and allocates arrays of that length. Arrays as long as `parent` would take
    longer to allocate. A positive difference d is written as 2d - 2 and a negative one as -2d - 1, so that small
    differences have small numbers.
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
    """Write `values` to `ordered`, grouped by class. The order within a class stays. `counts` has the size of each
    class.
    """
    ends = np.zeros(CLASSES, np.int64)
    for kind in range(1, CLASSES):
        ends[kind] = ends[kind - 1] + counts[kind - 1]
    for i in range(len(classes)):
        kind = classes[i]
        ordered[ends[kind]] = values[i]
        ends[kind] += 1


def apply_changes(parent: Bits, gaps: Numbers, differences: Numbers, counts: Numbers, child: Bits) -> int:
    """Write the child, and return the number of changes applied, or -1 if a difference leads outside bfloat16.

    `gaps` and `differences` are sorted by class, and `counts` has the number of changes of each class. If a gap leads
    beyond the last value of its class, the result is smaller than the number of changes.
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
