"""Forged proofs that need no forward pass. A worker that runs no model, or an outdated one, could submit them.

Calibration refuses thresholds that would accept one of them. Each forger knows honest proofs of earlier windows of this
pool, as every contributor does.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from covey.toploc import finite_field
from covey.toploc.proofs import build, compute_k, compute_top

Bits = NDArray[np.uint16]
Forger = Callable[[Bits, np.random.Generator], bytes]
"""Function that forges a proof for a window of n rows from the activations of an earlier window, uint16[n, hidden]."""


def forge_constant(earlier: Bits, rng: np.random.Generator) -> bytes:
    """Forge a constant polynomial of one typical value. Plain TOPLOC accepts it, because it ignores the sign."""
    values = earlier.reshape(-1)
    top = values[compute_top(values, compute_k(*earlier.shape))]
    middle = int(np.sort(top & 0x7FFF)[len(top) // 2])
    return _encode(finite_field.PRIME, [middle] + [0] * (len(top) - 1))


def forge_profile(earlier: Bits, rng: np.random.Generator) -> bytes:
    """Return the honest proof of an earlier window, unchanged."""
    return build(earlier, window=len(earlier))[0]


def forge_shuffled(earlier: Bits, rng: np.random.Generator) -> bytes:
    """Forge a proof with the values and indices of an earlier window, combined in a different order.

    The histogram of the values is right, and the indices are likely ones.
    """
    values = earlier.reshape(-1).copy()
    top = compute_top(values, compute_k(*earlier.shape))
    values[top] = rng.permutation(values[top])
    return build(values.reshape(earlier.shape), window=len(earlier))[0]


def forge_channels(earlier: Bits, rng: np.random.Generator) -> bytes:
    """Forge a proof with the typical value of each channel. The proof's modulus maps an index to its channel."""
    hidden = earlier.shape[1]
    if hidden < compute_k(*earlier.shape):
        return forge_profile(earlier, rng)  # no such modulus exists: there are fewer channels than coefficients
    middle = np.argsort(earlier & 0x7FFF, axis=0)[len(earlier) // 2]
    usual = earlier[middle, np.arange(hidden)]
    top = compute_top(usual, compute_k(*earlier.shape))
    coefficients = finite_field.interpolate(
        top[None].astype(np.int64), usual[top][None].astype(np.int64) % finite_field.PRIME
    )[0]
    return _encode(hidden, coefficients.tolist())


FORGERS: Mapping[str, Forger] = {
    "constant": forge_constant,
    "profile": forge_profile,
    "shuffled": forge_shuffled,
    "channels": forge_channels,
}


def _encode(modulus: int, coefficients: list[int]) -> bytes:
    return np.array([modulus, *coefficients], dtype=">u2").tobytes()
