"""Batched interpolation and evaluation of polynomials over the field with 65497 elements.

Elements are int64 in 0 .. 65496. Matrix products run in float64 and are exact, because a sum of at most 2**20
products of two elements stays below 2**53.
"""

import numpy as np
from numpy.typing import NDArray

PRIME = 65497
"""Size of the field, 2**16 - 39: the prime below 2**16 that TOPLOC's authors chose."""

Longs = NDArray[np.int64]


def evaluate(coefficients: Longs, points: Longs) -> Longs:
    """Return the values of the polynomial at `points`, int64[k].

    `coefficients` (in ascending order) and `points` are int64[k].
    """
    powers = compute_powers(points[None], len(coefficients))[0]
    return multiply(coefficients, powers)


def interpolate(points: Longs, values: Longs) -> Longs:
    """Return the ascending coefficients of n polynomials of degree below k, int64[n, k].

    Polynomial i passes through the k pairs in row i of `points` and `values`, both [n, k]. The points of a row are
    distinct.
    With M the product of all (x - x_i) and w_i = y_i / M'(x_i), Lagrange's sum is sum_i w_i M(x) / (x - x_i).
    Dividing M by (x - x_i) gives coefficient t as sum_p M_{t+1+p} s_p, with the power sums s_p = sum_i w_i x_i^p.
    """
    n, k = points.shape
    master = compute_master(points)  # (n, k + 1)
    powers = compute_powers(points, k)  # (n, k, k): [t, i] = x_i ** t
    derivative = master[:, 1:] * np.arange(1, k + 1) % PRIME
    slopes = multiply(derivative[:, None, :], powers)[:, 0, :]
    weights = values * invert(slopes) % PRIME
    sums = multiply(powers, weights[:, :, None])[:, :, 0]
    padded = np.concatenate([master[:, 1:], np.zeros((n, k - 1), np.int64)], axis=1)
    shifted = np.lib.stride_tricks.sliding_window_view(padded, k, axis=1)  # (n, k, k): [t, p] = M_{t+1+p}
    return multiply(shifted, sums[:, :, None])[:, :, 0]


def compute_master(points: Longs) -> Longs:
    """Return the ascending coefficients of the product of (x - x_i) over each row of `points`, int64[n, k + 1]."""
    n, k = points.shape
    master = np.zeros((n, k + 1), np.int64)
    master[:, 0] = 1
    for i in range(k):
        shifted = master[:, : i + 1].copy()
        master[:, : i + 1] *= PRIME - points[:, i : i + 1]
        master[:, 1 : i + 2] += shifted
        master[:, : i + 2] %= PRIME
    return master


def compute_powers(points: Longs, count: int) -> Longs:
    """Return int64[n, count, k], whose entry [t, i] is x_i ** t for each row of `points`, int64[n, k]."""
    n, k = points.shape
    powers = np.ones((n, count, k), np.int64)
    if count > 1:
        powers[:, 1] = points
    done = 2
    while done < count:
        more = min(done - 1, count - done)
        powers[:, done : done + more] = powers[:, 1 : 1 + more] * powers[:, done - 1 : done] % PRIME
        done += more
    return powers


def invert(elements: Longs) -> Longs:
    """Return the multiplicative inverses by Fermat's little theorem, x ** (PRIME - 2). The inverse of zero is zero."""
    result, square = np.ones_like(elements), elements
    exponent = PRIME - 2
    while exponent:
        if exponent & 1:
            result = result * square % PRIME
        square = square * square % PRIME
        exponent >>= 1
    return result


def multiply(left: Longs, right: Longs) -> Longs:
    """Return the matrix product of field elements, reduced modulo `PRIME`."""
    return (left.astype(np.float64) @ right.astype(np.float64)).astype(np.int64) % PRIME
