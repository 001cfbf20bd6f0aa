"""Functions of `class_gaps` and `rans`, compiled with numba.

Every kernel processes a whole block on one core in one call, and releases the GIL.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from covey.shardcast.delta import class_gaps, rans


class Kernels(NamedTuple):
    """Compiled functions. The plain function of the same name documents each of them."""

    count_changes: Callable[..., int]
    find_changes: Callable[..., int]
    sort_by_class: Callable[..., None]
    apply_changes: Callable[..., int]
    count_symbols: Callable[..., None]
    scale: Callable[..., None]
    encode_pairs: Callable[..., int]
    write_bits: Callable[..., int]
    decode_symbols: Callable[..., bool]
    read_bits: Callable[..., bool]


_LOCK = threading.Lock()


def compile_all() -> Kernels:
    """Return the kernels. The first call on a machine compiles them, and later processes load them from disk."""
    with _LOCK:
        return _compile()


@functools.cache
def _compile() -> Kernels:
    # A process that has imported numba cannot start vLLM, so numba is imported at first use.
    from numba import njit
    from numba.extending import register_jitable

    for function in (class_gaps.get_rank, rans.split, rans.add_up):
        register_jitable(error_model="numpy")(function)
    compiler: Callable[[Callable[..., Any]], Any] = njit(cache=True, nogil=True, error_model="numpy")
    return Kernels(
        count_changes=compiler(class_gaps.count_changes),
        find_changes=compiler(class_gaps.find_changes),
        sort_by_class=compiler(class_gaps.sort_by_class),
        apply_changes=compiler(class_gaps.apply_changes),
        count_symbols=compiler(rans.count_symbols),
        scale=compiler(rans.scale),
        encode_pairs=compiler(rans.encode_pairs),
        write_bits=compiler(rans.write_bits),
        decode_symbols=compiler(rans.decode_symbols),
        read_bits=compiler(rans.read_bits),
    )
