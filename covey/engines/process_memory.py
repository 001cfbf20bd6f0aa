"""Memory of a process that computes: kept where it was freed, and explained where it ran out.  Used by the engines."""

import ctypes

from covey.errors import OperatorError

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8
"""Of mallopt(3): what is larger is a mapping of its own; so much free memory stays at the heap's end; as threads have
arenas of their own of small heaps, whose ends go at once, there is one for all."""
_SIGNS = ("out of memory", "can't allocate memory", "Cannot allocate memory")


def explain_memory(error: BaseException, engine: str) -> OperatorError | None:
    """OperatorError "engine_out_of_memory" if that is what `error` says; None for any other."""
    import torch

    is_ours = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    if not is_ours and not (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)):
        return None
    reason = str(error).splitlines()[0] if str(error) else "no more is known"
    return OperatorError(
        "engine_out_of_memory",
        f"{engine} ran out of memory: {reason}",
        fix="Lower batch, or the tokens of one step, or give it more memory",
    )


def keep_memory() -> None:
    """From now on this process keeps up to a gibibyte of what it frees, and the next step's tensors lie there.

    Called before there are threads, whose arenas would stay.  Else the kernel takes it back after each step and clears
    every page before it is used again.  Nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 1 << 30)
        mallopt(_ARENA_MAX, 1)
