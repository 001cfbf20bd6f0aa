"""Memory of a process that runs an engine: it keeps freed memory, and it reports when memory runs out."""

import ctypes

from covey.errors import OperatorError

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8
"""Parameters of mallopt(3): mmap threshold, trim threshold and number of arenas.

An allocation above the mmap threshold gets its own mapping. Free memory up to the trim threshold stays at the heap's
end. All threads share one arena, because per-thread arenas have small heaps whose ends return to the kernel at once.
"""
_SIGNS = ("out of memory", "can't allocate memory", "Cannot allocate memory")
"""Texts by which the message of a RuntimeError shows that memory ran out."""


def explain_memory(error: BaseException, engine: str) -> OperatorError | None:
    """Return OperatorError("engine_out_of_memory") if `error` means that memory ran out, and None for any other."""
    import torch

    is_typed = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    if not is_typed and not (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)):
        return None
    reason = str(error).splitlines()[0] if str(error) else "the error has no message"
    return OperatorError(
        "engine_out_of_memory",
        f"{engine} ran out of memory: {reason}",
        fix="Lower batch or the tokens of one step, or give the engine more memory",
    )


def keep_memory() -> None:
    """Make this process keep up to a gibibyte of freed memory, which the next step's tensors use again.

    Otherwise the kernel takes the memory back after each step and clears every page before its next use. Call this
    before the process starts threads, because their arenas would stay. It has no effect if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 1 << 30)
        mallopt(_ARENA_MAX, 1)
