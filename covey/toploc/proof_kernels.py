"""The arithmetic of `reference`, compiled for one core with bit-identical results.

`backend` selects it if numba is installed. Every kernel processes many windows in one call and releases the GIL.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey.toploc import reference, topk_kernel
from covey.toploc.finite_field import PRIME

Bits = NDArray[np.uint16]
Words = NDArray[np.uint32]
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]

_MAX_VALUES = 1024
"""Maximum number of values in a proof for which the sums fit in 32 bits. Larger proofs use `reference`."""


def find_top(windows: Bits, k: int) -> tuple[Longs, Bits]:
    """Compiled `reference.find_top`."""
    n = len(windows)
    indices, values = np.empty((n, k), np.int64), np.empty((n, k), np.uint16)
    _compile().find_top(windows, indices, values)
    return indices, values


def solve(indices: Longs, values: Bits) -> Bits:
    """Compiled `reference.solve`."""
    n, k = indices.shape
    if k > _MAX_VALUES:
        return reference.solve(indices, values)
    words = np.empty((n, k + 1), np.uint16)
    if _compile().solve(indices, values, words) < n:
        raise ValueError("there is no modulus that keeps the indices of a window distinct")
    return words


def measure(words: Bits, indices: Longs, values: Bits) -> tuple[Longs, Doubles, Doubles, Doubles]:
    """Compiled `reference.measure`."""
    n = len(words)
    mismatches, means, medians, rests = np.empty(n, np.int64), np.empty(n), np.empty(n), np.empty(n)
    _compile().measure(words, indices, values, mismatches, means, medians, rests)
    return mismatches, means, medians, rests


class _Compiled(NamedTuple):
    find_top: Callable[[Bits, Longs, Bits], None]
    solve: Callable[[Longs, Bits, Bits], int]
    measure: Callable[[Bits, Longs, Bits, Longs, Doubles, Doubles, Doubles], None]


@functools.cache
def _compile() -> _Compiled:
    # Importing numba before vLLM starts crashes vLLM's start. It is therefore imported at the first proof.
    from numba import njit
    from numba.extending import register_jitable

    functions = (
        *topk_kernel.PARTS,
        _reduce,
        _multiply,
        _multiply_add,
        _find_points,
        _multiply_out,
        _invert,
        _add_up,
        _median,
    )
    for function in functions:
        register_jitable(error_model="numpy")(function)
    compiler: Callable[[Callable[..., Any]], Any] = njit(cache=True, nogil=True, error_model="numpy")
    return _Compiled(compiler(topk_kernel.find_top), compiler(_solve), compiler(_measure))


# The functions below only run compiled. Every operand is cast to 32 bits by hand, because numba widens mixed operands.


def _reduce(x: np.uint32) -> np.uint32:
    """Return x modulo `PRIME`.

    2**16 equals 39 in the field, so two folds leave a value below 2 * PRIME. The remainder is then the smaller of
    x and x - PRIME, because the subtraction wraps.
    """
    fold, mask, half = np.uint32(39), np.uint32(0xFFFF), np.uint32(16)
    x = np.uint32((x >> half) * fold + (x & mask))
    x = np.uint32((x >> half) * fold + (x & mask))
    return min(x, np.uint32(x - np.uint32(PRIME)))


def _multiply(into: Words, factors: Words) -> None:
    for i in range(len(into)):
        into[i] = _reduce(np.uint32(into[i] * factors[i]))


def _multiply_add(into: Words, factors: Words, term: np.uint32) -> None:
    """Compute one step of Horner's method at all points. A product plus an element stays below 2**32."""
    for i in range(len(into)):
        into[i] = _reduce(np.uint32(into[i] * factors[i] + term))


def _find_points(indices: Longs, points: Words, occupied: NDArray[np.uint64]) -> int:
    """Return the largest modulus for which the indices are distinct. 0 if there is none.

    `points` receives the indices modulo the result. `occupied` has one bit for each field element. All bits are 0
    before and after the call.
    """
    k = len(indices)
    for modulus in range(PRIME, k - 1, -1):
        distinct = 0
        for i in range(k):
            point = np.uint32(np.uint32(indices[i]) % np.uint32(modulus))
            bit = np.uint64(1) << np.uint64(point & np.uint32(63))
            if occupied[point >> np.uint32(6)] & bit:
                break
            occupied[point >> np.uint32(6)] |= bit
            points[i] = point
            distinct += 1
        for i in range(distinct):
            occupied[points[i] >> np.uint32(6)] = np.uint64(0)
        if distinct == k:
            return modulus
    return 0


def _multiply_out(points: Words, master: Words, spare: Words) -> None:
    """Write the k + 1 ascending coefficients of the product of all (x - x_i) to `master`.

    `spare` is scratch space of the same length.
    """
    k = len(points)
    master[:] = 0
    spare[:] = 0
    source, target = (master, spare) if k % 2 == 0 else (spare, master)
    source[0] = 1
    for i in range(k):
        root = np.uint32(np.uint32(PRIME) - points[i])
        target[0] = _reduce(np.uint32(source[0] * root))
        lower, here, to = source[: i + 1], source[1 : i + 2], target[1 : i + 2]
        for j in range(i + 1):
            to[j] = _reduce(np.uint32(here[j] * root + lower[j]))
        source, target = target, source


def _invert(elements: Words, inverses: Words) -> None:
    """Write the inverses by Fermat's little theorem, x ** (PRIME - 2), to `inverses`."""
    inverses[:] = elements
    for bit in range(14, -1, -1):
        _multiply(inverses, inverses)
        if ((PRIME - 2) >> bit) & 1:
            _multiply(inverses, elements)


def _add_up(weights: Words, points: Words, sums: Words) -> None:
    """Write the sum of w_i x_i ** p to `sums`[p]. `weights` is overwritten."""
    for p in range(len(sums)):
        total = np.uint32(0)
        for i in range(len(weights)):
            total = np.uint32(total + weights[i])
            weights[i] = _reduce(np.uint32(weights[i] * points[i]))
        sums[p] = total % np.uint32(PRIME)


def _solve(indices: Longs, values: Bits, words: Bits) -> int:
    """Write the modulus and coefficients of every window to `words`.

    Returns the index of the first window without a modulus, or n if every window has one. The coefficients come from
    Lagrange's sum, as in `finite_field.interpolate`.
    """
    n, k = indices.shape
    prime, fold, mask, half = np.uint32(PRIME), np.uint32(39), np.uint32(0xFFFF), np.uint32(16)
    occupied = np.zeros(PRIME // 64 + 1, np.uint64)
    points, slopes, weights = np.empty(k, np.uint32), np.empty(k, np.uint32), np.empty(k, np.uint32)
    sums, padded = np.empty(k, np.uint32), np.zeros(2 * k, np.uint32)
    master, spare = np.empty(k + 1, np.uint32), np.empty(k + 1, np.uint32)
    for w in range(n):
        words[w, 0] = _find_points(indices[w], points, occupied)
        if words[w, 0] == 0:
            return w
        _multiply_out(points, master, spare)
        padded[:k] = master[1:]
        slopes[:] = 0
        for t in range(k, 0, -1):
            _multiply_add(slopes, points, _reduce(np.uint32(master[t] * np.uint32(t))))
        _invert(slopes, weights)
        for i in range(k):
            weights[i] = _reduce(np.uint32(weights[i] * np.uint32(np.uint32(values[w, i]) % prime)))
        _add_up(weights, points, sums)
        # After one fold a product has 22 bits, so at most 1024 of them fit in 32 bits before the last reduction.
        slopes[:] = 0
        for p in range(k):
            factor, shifted = sums[p], padded[p : p + k]
            for t in range(k):
                x = np.uint32(shifted[t] * factor)
                slopes[t] += np.uint32((x >> half) * fold + (x & mask))
        for t in range(k):
            words[w, 1 + t] = slopes[t] % prime
    return int(n)


def _measure(
    words: Bits, indices: Longs, values: Bits, mismatches: Longs, means: Doubles, medians: Doubles, rests: Doubles
) -> None:
    """Write the four distances of every window.

    Differences are counted in a histogram, from which the median follows.
    """
    n, k = indices.shape
    points, claims, counts = np.empty(k, np.uint32), np.empty(k, np.uint32), np.empty(128, np.int64)
    for w in range(n):
        modulus = np.uint32(words[w, 0])
        for i in range(k):
            points[i] = np.uint32(indices[w, i]) % modulus
        claims[:] = 0
        for t in range(k, 0, -1):
            _multiply_add(claims, points, np.uint32(words[w, t]))
        counts[:] = 0
        agreeing, total, largest = 0, np.int64(0), np.int64(0)
        for i in range(k):
            claimed, replayed = np.int64(claims[i]), np.int64(values[w, i]) % PRIME
            if (claimed ^ replayed) & 0xFF80 == 0:
                difference = np.abs((claimed & 0x7F) - (replayed & 0x7F))
                counts[difference] += 1
                total += difference
                largest = max(largest, difference)
                agreeing += 1
        mismatches[w] = k - agreeing
        means[w] = total / agreeing if agreeing else np.inf
        medians[w] = _median(counts, agreeing)
        rests[w] = (total - largest) / (agreeing - 1) if agreeing > 1 else np.inf


def _median(counts: Longs, n: int) -> float:
    """Return the median of n differences in a histogram. Infinite if n is 0.

    For an even n this is the mean of the two in the middle.
    """
    lower, passed = -1, 0
    for difference in range(len(counts)):
        passed += counts[difference]
        if lower < 0 and passed > (n - 1) // 2:
            lower = difference
        if passed > n // 2:
            return (lower + difference) / 2
    return float(np.inf)
