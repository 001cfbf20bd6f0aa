"""The noise of the seeded sampler: Gumbel values from a counter-based generator.

Every word is a function of (seed, position, token) alone, so worker and validator agree for any batch. Words are equal
bit for bit everywhere. Gumbel values are computed in float64, with the same operations everywhere, and rounded to
float32.
"""

import numpy as np
from numpy.typing import NDArray

from covey.sampling.noise_kernels import compile_all
from covey.sampling.philox import LOW, MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1


def philox_words(seeds: NDArray[np.uint64], positions: NDArray[np.uint32], vocabulary: int) -> NDArray[np.uint32]:
    """Return the random words of each row, uint32[n, vocabulary].

    Entry [r, v] is word v & 3 of Philox 4x32-10 with key (low half, high half of seeds[r]) and counter
    (v >> 2, positions[r], 0, 0). This is the readable version. `gumbel` uses a compiled one that returns the same bits.
    """
    n, blocks = len(seeds), (vocabulary + 3) // 4
    low, shift = np.uint64(LOW), np.uint64(32)
    shape = (n, blocks)
    c0 = np.broadcast_to(np.arange(blocks, dtype=np.uint64), shape)
    c1 = np.broadcast_to(positions.astype(np.uint64)[:, None], shape)
    c2 = c3 = np.zeros(shape, np.uint64)
    k0, k1 = (seeds & low)[:, None], (seeds >> shift)[:, None]
    for _ in range(ROUNDS):
        product_0, product_1 = np.uint64(MULTIPLIER_0) * c0, np.uint64(MULTIPLIER_1) * c2
        c0, c1 = (product_1 >> shift) ^ c1 ^ k0, product_1 & low
        c2, c3 = (product_0 >> shift) ^ c3 ^ k1, product_0 & low
        k0, k1 = (k0 + np.uint64(WEYL_0)) & low, (k1 + np.uint64(WEYL_1)) & low
    return np.stack([c0, c1, c2, c3], axis=-1).reshape(n, 4 * blocks)[:, :vocabulary].astype(np.uint32)


def gumbel(seeds: NDArray[np.uint64], positions: NDArray[np.uint32], vocabulary: int) -> NDArray[np.float32]:
    """Return the noise -log(-log(u)) with u = (word + 0.5) / 2**32, float32[n, vocabulary]. Its range is -3.14 to 22.9.

    `seeds` is uint64[n], the slots' seeds. `positions` is uint32[n], 0 at the first completion token.
    """
    out = np.empty((len(seeds), vocabulary), np.float32)
    compile_all().fill_gumbel(*_pair(seeds, positions), out)
    return out


def _pair(seeds: NDArray[np.uint64], positions: NDArray[np.uint32]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    if len(seeds) != len(positions):
        raise ValueError(f"{len(seeds)} seeds were given for {len(positions)} positions")
    return np.ascontiguousarray(seeds, np.uint64), np.ascontiguousarray(positions, np.uint32)
