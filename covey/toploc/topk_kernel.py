"""Searches the k values of largest magnitude in a window, with the same result as `reference.find_top`.

`proof_kernels` compiles it. If at least k block maxima reach a level, the k-th largest value reaches it too.
Therefore only the blocks that reach the level are read again, four values per word.
"""

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Longs = NDArray[np.int64]

_BLOCK = 64
"""Number of values per block, whose maximum takes few vector instructions."""
_LOW = 0x7FFF
"""Mask that removes the sign from a bit pattern."""
_LANES = 0x0001_0001_0001_0001
"""Multiplier that copies a 16-bit value into the four lanes of a word."""


def find_top(windows: Bits, indices: Longs, values: Bits) -> None:
    """Fill `indices` and `values`, both [n, k], by ascending index. `windows` is [n, size], contiguous."""
    n, size = windows.shape
    k = indices.shape[1]
    # A short window has fewer than 2 k blocks, so every value is its own block.
    block = _BLOCK if size >= 2 * k * _BLOCK else 1
    # At most `enough` blocks reach the level, unless fewer than k lie above it. Ties are kept until there are k.
    enough = k + k // 8
    maxima = np.empty((size + block - 1) // block, np.uint16)
    places, kept = np.empty(enough * block + k, np.int64), np.empty(enough * block + k, np.uint16)
    level = 0x4000
    for w in range(n):
        row = windows[w]
        if block == 1:
            for j in range(size):
                maxima[j] = row[j] & np.uint16(_LOW)
        else:
            _find_maxima(row, maxima)
        # The level of the previous window is the first guess.
        level = _find_level(maxima, k, enough, level)
        count = _collect(row, block, maxima, level, k, places, kept)
        exact = np.uint16(_find_level(kept[:count], k, k, level))
        room = k
        for c in range(count):
            room -= kept[c] > exact
        out = 0
        for c in range(count):
            if kept[c] > exact or (kept[c] == exact and room > 0):
                room -= kept[c] == exact
                indices[w, out] = places[c]
                values[w, out] = row[places[c]]
                out += 1


def _find_maxima(row: Bits, maxima: Bits) -> None:
    """Write the largest magnitude of every block to `maxima`. The last block may be short."""
    low, whole = np.uint16(_LOW), len(row) // _BLOCK
    for b in range(whole):
        values = row[b * _BLOCK : b * _BLOCK + _BLOCK]
        best = np.uint16(0)
        for j in range(_BLOCK):
            best = max(np.uint16(values[j] & low), best)
        maxima[b] = best
    if whole < len(maxima):
        best = np.uint16(0)
        for j in range(whole * _BLOCK, len(row)):
            best = max(np.uint16(row[j] & low), best)
        maxima[whole] = best


def _find_level(magnitudes: Bits, k: int, enough: int, guess: int) -> int:
    """Return a level that k to `enough` of the magnitudes reach, or else the largest level that at least k reach.

    The search starts at the guess with steps that double, and continues by bisection.
    """
    lower, upper, step, middle = 0, _LOW, 2, guess
    while lower < upper:
        limit, reached = np.uint16(middle), 0
        for b in range(len(magnitudes)):
            reached += magnitudes[b] >= limit
        if reached >= k:
            lower = middle
            if reached <= enough:
                return lower
            middle = min(lower + step, (lower + upper + 1) // 2)
        else:
            upper = middle - 1
            middle = max(upper - step, (lower + upper + 1) // 2)
        step *= 2
    return lower


def _collect(row: Bits, block: int, maxima: Bits, level: int, k: int, places: Longs, kept: Bits) -> int:
    """Write the indices and magnitudes of the values that reach the level, and return their number.

    Of the values equal to the level, only the first k are kept.
    """
    size, limit = len(row), np.uint16(level)
    low_lanes, high_lanes = np.uint64(_LANES * _LOW), np.uint64(_LANES * (_LOW + 1))
    addend = np.uint64(_LANES) * np.uint64(_LOW + 1 - level)
    words = row[: size // 4 * 4].view(np.uint64)
    count, ties = 0, 0
    for b in range(len(maxima)):
        if maxima[b] < limit:
            continue
        stop = min(b * block + block, size)
        if stop - b * block < _BLOCK:
            for j in range(b * block, stop):
                count, ties = _keep(row, j, limit, k, count, ties, places, kept)
            continue
        for word in range(b * (_BLOCK // 4), (b + 1) * (_BLOCK // 4)):
            # A lane's magnitude plus 0x8000 - level has its high bit set exactly if the magnitude reaches the level.
            if ((words[word] & low_lanes) + addend) & high_lanes:
                for j in range(4 * word, 4 * word + 4):
                    count, ties = _keep(row, j, limit, k, count, ties, places, kept)
    return count


def _keep(
    row: Bits, j: int, limit: np.uint16, k: int, count: int, ties: int, places: Longs, kept: Bits
) -> tuple[int, int]:
    value = np.uint16(row[j] & np.uint16(_LOW))
    if value < limit or (value == limit and ties >= k):
        return count, ties
    places[count] = j
    kept[count] = value
    return count + 1, ties + (value == limit)


PARTS = (_find_maxima, _find_level, _collect, _keep)
"""Functions that `find_top` calls and that are compiled with it."""
