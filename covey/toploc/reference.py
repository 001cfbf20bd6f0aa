"""The arithmetic of `proofs` in plain numpy.

It is used if numba is not installed, and `proof_kernels` must equal it bit for bit. Every function takes n windows of
one size, as bfloat16 bits.
"""

import numpy as np
from numpy.typing import NDArray

from covey.toploc import finite_field

_MAGNITUDE = 0x7FFF
_SIGN_EXPONENT = 0xFF80
_MANTISSA = 0x7F
_SOLVED_TOGETHER = 16
"""Number of windows per interpolation. 16 matrices of 128 x 128 take 2 MiB, which fits in a core's cache."""

Bits = NDArray[np.uint16]
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]


def find_top(windows: Bits, k: int) -> tuple[Longs, Bits]:
    """Return the indices int64[n, k] and the bits uint16[n, k] of the k values of largest magnitude in each window.

    `windows` is uint16[n, size], contiguous, and k is at most size. Indices ascend in each row. Ties go to the lower
    index. Magnitudes are compared as bit patterns without the sign bit. This also orders infinities and NaN.
    """
    indices = np.empty((len(windows), k), np.int64)
    for w, values in enumerate(windows):
        magnitudes = values & np.uint16(_MAGNITUDE)
        limit = np.partition(magnitudes, magnitudes.size - k)[magnitudes.size - k]
        above = np.flatnonzero(magnitudes > limit)
        level = np.flatnonzero(magnitudes == limit)[: k - above.size]
        indices[w] = np.sort(np.concatenate([above, level]))
    return indices, np.take_along_axis(windows, indices, axis=1)


def solve(indices: Longs, values: Bits) -> Bits:
    """Return the modulus and ascending coefficients of each proof, uint16[n, k + 1].

    `indices` and `values` are [n, k]. Raises ValueError if an index occurs twice, because then no modulus exists.
    """
    words = np.empty((len(indices), indices.shape[1] + 1), np.uint16)
    for start in range(0, len(indices), _SOLVED_TOGETHER):
        batch = slice(start, start + _SOLVED_TOGETHER)
        moduli = _compute_moduli(indices[batch])
        # The field has 65497 elements, so the 39 patterns from 65497 up (negative NaNs) wrap, as in package `toploc`.
        elements = values[batch].astype(np.int64) % finite_field.PRIME
        words[batch, 0] = moduli
        words[batch, 1:] = finite_field.interpolate(indices[batch] % moduli[:, None], elements)
    return words


def measure(words: Bits, indices: Longs, values: Bits) -> tuple[Longs, Doubles, Doubles, Doubles]:
    """Return the distance of each proof from the verifier's own top values.

    The result is the number of sign or exponent mismatches, int64[n], and three statistics of the other values'
    mantissa differences, float64[n]: mean, median, and mean without the largest. A statistic without values is
    infinite. `words` is uint16[n, k + 1], the parsed proofs. `indices` and `values` are the verifier's top values, [n,
    k].
    """
    n = len(words)
    mismatches = np.empty(n, np.int64)
    means, medians, rests = (np.full(n, np.inf) for _ in range(3))
    for w in range(n):
        modulus, coefficients = int(words[w, 0]), words[w, 1:].astype(np.int64)
        claimed = finite_field.evaluate(coefficients, indices[w] % modulus)
        replayed = values[w].astype(np.int64) % finite_field.PRIME
        mismatch = ((claimed ^ replayed) & _SIGN_EXPONENT) != 0
        differences = np.abs((claimed & _MANTISSA) - (replayed & _MANTISSA))[~mismatch]
        mismatches[w] = mismatch.sum()
        if differences.size:
            means[w], medians[w] = differences.mean(), np.median(differences)
        if differences.size > 1:
            rests[w] = np.sort(differences)[:-1].mean()
    return mismatches, means, medians, rests


def _compute_moduli(indices: Longs) -> Longs:
    """Return the largest modulus up to 65497 for which the k indices of each window are distinct, int64[n]."""
    moduli = np.full(len(indices), finite_field.PRIME, np.int64)
    for n, row in enumerate(indices):
        while np.unique(row % moduli[n]).size < row.size:
            moduli[n] -= 1
            if moduli[n] < row.size:
                raise ValueError("there is no modulus that keeps the indices of a window distinct")
    return moduli
