"""Compiles the kernels before the first delta needs them."""

import threading

import numpy as np

from covey.shardcast.delta import block_codec

_VALUES = 512
"""Number of values in the block that is encoded and decoded. Half of them change, so that every kernel runs."""


def compile_in_background() -> None:
    """Compile the kernels in a background thread. Later processes load them from disk."""
    threading.Thread(target=compile_kernels, name="compile-kernels", daemon=True).start()


def compile_kernels() -> None:
    """Encode and decode a small block with each kind of array in use, because numba compiles for each kind."""
    parent = np.arange(_VALUES, dtype=np.uint16)
    child = parent ^ np.uint16(1) * (parent % 2)
    parent.flags.writeable = child.flags.writeable = False  # Weights files are mapped read-only.
    coded = block_codec.encode(parent, child)
    for base in (parent, parent.copy()):  # After the first delta, the parent is in memory.
        block_codec.decode(base, coded, np.empty_like(child))
