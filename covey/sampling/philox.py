"""Philox 4x32-10 in a form that compiles, one chunk of blocks at a time. `noise_kernels` compiles it into all kernels.

The generator is from Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
After a change of this file, touch `noise_kernels.py`: numba's disk cache checks only the modification time of that
file.
"""

import numpy as np
from numpy.typing import NDArray

ROUNDS = 10
MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
LOW = 0xFFFFFFFF

SAMPLER_VERSION = 1
"""Version of the sampler in execution contracts. Raise it when a bit of a token, margin or log-probability changes."""
BLOCKS = 64
"""Number of counters per chunk. A chunk has 256 words."""


def fill_planes(seed: np.uint64, position: np.uint32, first: int, count: int, planes: NDArray[np.uint32]) -> None:
    """Write word i of the block with counter (first + b, position, 0, 0) to `planes`[i, b], for each b below `count`.

    `planes` is uint32[4, BLOCKS]. The function only works compiled. Every operand is cast to 64 bits explicitly,
    because numba converts mixed operands to floats.
    """
    low, shift = np.uint64(LOW), np.uint64(32)
    multiplier_0, multiplier_1 = np.uint64(MULTIPLIER_0), np.uint64(MULTIPLIER_1)
    weyl_0, weyl_1 = np.uint64(WEYL_0), np.uint64(WEYL_1)
    plane_0, plane_1, plane_2, plane_3 = planes[0], planes[1], planes[2], planes[3]
    for b in range(count):
        c0, c1 = np.uint64(first + b) & low, np.uint64(position)
        c2, c3 = np.uint64(0), np.uint64(0)
        k0, k1 = seed & low, seed >> shift
        for _ in range(ROUNDS):
            product_0, product_1 = multiplier_0 * c0, multiplier_1 * c2
            c0, c1 = (product_1 >> shift) ^ c1 ^ k0, product_1 & low
            c2, c3 = (product_0 >> shift) ^ c3 ^ k1, product_0 & low
            k0, k1 = (k0 + weyl_0) & low, (k1 + weyl_1) & low
        plane_0[b], plane_1[b], plane_2[b], plane_3[b] = c0, c1, c2, c3
