"""Compiles the kernels before the first delta needs them."""

import threading

import numpy as np

from covey.shardcast.delta import block_codec

_VALUES = 512
"""Number of values of a block that is encoded and decoded. Half of them change, which leads through every kernel."""


def compile_in_background() -> None:
    """Compile the kernels in a thread. A machine does it once and then keeps them on disk."""
    threading.Thread(target=compile_kernels, name="compile-kernels", daemon=True).start()


def compile_kernels() -> None:
    """Encode and decode a small block for each kind of array in use, because numba compiles for each kind."""
    parent = np.arange(_VALUES, dtype=np.uint16)
    child = parent ^ np.uint16(1) * (parent % 2)
    parent.flags.writeable = child.flags.writeable = False  # Policies in files are mapped for reading.
    coded = block_codec.encode(parent, child)
    for base in (parent, parent.copy()):  # Only the first of several deltas has a parent in a file.
        block_codec.decode(base, coded, np.empty_like(child))
