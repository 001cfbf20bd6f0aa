"""Detects that an engine's process ran out of memory, and releases memory for another process."""

from covey.errors import OperatorError

_SIGNS = ("out of memory", "can't allocate memory", "Cannot allocate memory")
"""Strings in the message of a RuntimeError that show that memory ran out."""


def explain_memory(error: BaseException, engine: str) -> OperatorError | None:
    """Convert `error` to OperatorError("engine_out_of_memory") if memory ran out. Return None for any other error."""
    import torch

    is_typed = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    if not is_typed and not (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)):
        return None
    reason = str(error).splitlines()[0] if str(error) else "no details were reported"
    return OperatorError(
        "engine_out_of_memory",
        f"{engine} ran out of memory: {reason}",
        fix="Lower batch or, with vLLM, max_num_batched_tokens, or use a device with more memory",
    )


def release_cache() -> None:
    """Return the GPU memory that torch has kept for its next tensors, so that another process can use it."""
    import torch

    torch.cuda.empty_cache()
