"""Chooses the proof arithmetic: compiled kernels, or numpy if numba is not installed."""

import functools
import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey.toploc import proof_kernels, reference

Bits = NDArray[np.uint16]
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]


class Arithmetic(NamedTuple):
    """Three functions over n windows of one size. `reference` documents them."""

    find_top: Callable[[Bits, int], tuple[Longs, Bits]]
    solve: Callable[[Longs, Bits], Bits]
    measure: Callable[[Bits, Longs, Bits], tuple[Longs, Doubles, Doubles, Doubles]]


NUMPY = Arithmetic(reference.find_top, reference.solve, reference.measure)
COMPILED = Arithmetic(proof_kernels.find_top, proof_kernels.solve, proof_kernels.measure)


@functools.cache
def choose() -> Arithmetic:
    """Return `COMPILED`, or `NUMPY` if numba is not installed."""
    return NUMPY if importlib.util.find_spec("numba") is None else COMPILED
