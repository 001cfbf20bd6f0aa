"""The noise of the seeded sampler: Gumbel values from a counter-based generator, called by `sampler`.

Every word is a function of (seed, position, token) alone, so worker and validator agree whatever the batch.
Words are bit-equal everywhere; Gumbel values are float64 rounded to float32 and may differ in the last place.
"""

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
_ROUNDS = 10
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_LOW = 0xFFFFFFFF


def philox_words(seeds: NDArray[np.uint64], positions: NDArray[np.uint32], vocabulary: int) -> NDArray[np.uint32]:
    """uint32[n, vocabulary]: row r, token v is word v & 3 of Philox 4x32-10 with key (low, high half of seeds[r])
    and counter (v >> 2, positions[r], 0, 0).  The readable version; `gumbel` uses a compiled one, bit-equal."""
    n, blocks = len(seeds), (vocabulary + 3) // 4
    low, shift = np.uint64(_LOW), np.uint64(32)
    shape = (n, blocks)
    c0 = np.broadcast_to(np.arange(blocks, dtype=np.uint64), shape)
    c1 = np.broadcast_to(positions.astype(np.uint64)[:, None], shape)
    c2 = c3 = np.zeros(shape, np.uint64)
    k0, k1 = (seeds & low)[:, None], (seeds >> shift)[:, None]
    for _ in range(_ROUNDS):
        product_0, product_1 = np.uint64(_MULTIPLIER_0) * c0, np.uint64(_MULTIPLIER_1) * c2
        c0, c1 = (product_1 >> shift) ^ c1 ^ k0, product_1 & low
        c2, c3 = (product_0 >> shift) ^ c3 ^ k1, product_0 & low
        k0, k1 = (k0 + np.uint64(_WEYL_0)) & low, (k1 + np.uint64(_WEYL_1)) & low
    return np.stack([c0, c1, c2, c3], axis=-1).reshape(n, 4 * blocks)[:, :vocabulary].astype(np.uint32)


def philox_words_compiled(
    seeds: NDArray[np.uint64], positions: NDArray[np.uint32], vocabulary: int
) -> NDArray[np.uint32]:
    """As `philox_words`, compiled: about 2 ns a word on one core."""
    out = np.empty((len(seeds), vocabulary), np.uint32)
    _compiled_fill()(seeds, positions, out)
    return out


def gumbel(seeds: NDArray[np.uint64], positions: NDArray[np.uint32], vocabulary: int) -> NDArray[np.float32]:
    """float32[n, vocabulary]: -log(-log(u)) with u = (word + 0.5) / 2**32; between -3.14 and 22.9.

    `seeds`: uint64[n], the slots' seeds.  `positions`: uint32[n], 0 at the first completion token.
    """
    uniform = philox_words_compiled(seeds, positions, vocabulary).astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-32
    np.log(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    np.log(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    return uniform.astype(np.float32)


@functools.cache
def _compiled_fill() -> Callable[[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint32]], None]:
    # numba crashes vLLM's start when imported earlier, so it is imported at the first noise.
    from numba import njit

    compiled: Callable[[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint32]], None] = njit(cache=True)(_fill)
    return compiled


def _fill(seeds: NDArray[np.uint64], positions: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    """Compiled only: every operand is brought to 64 bits by hand, because numba widens mixed ones to floats."""
    n, vocabulary = out.shape
    low, shift = np.uint64(_LOW), np.uint64(32)
    multiplier_0, multiplier_1 = np.uint64(_MULTIPLIER_0), np.uint64(_MULTIPLIER_1)
    weyl_0, weyl_1 = np.uint64(_WEYL_0), np.uint64(_WEYL_1)
    for row in range(n):
        for first in range(0, vocabulary, 4):
            c0, c1 = np.uint64(first >> 2), np.uint64(positions[row])
            c2, c3 = np.uint64(0), np.uint64(0)
            k0, k1 = seeds[row] & low, seeds[row] >> shift
            for _ in range(_ROUNDS):
                product_0, product_1 = multiplier_0 * c0, multiplier_1 * c2
                c0, c1 = (product_1 >> shift) ^ c1 ^ k0, product_1 & low
                c2, c3 = (product_0 >> shift) ^ c3 ^ k1, product_0 & low
                k0, k1 = (k0 + weyl_0) & low, (k1 + weyl_1) & low
            out[row, first] = c0
            if first + 1 < vocabulary:
                out[row, first + 1] = c1
            if first + 2 < vocabulary:
                out[row, first + 2] = c2
            if first + 3 < vocabulary:
                out[row, first + 3] = c3
