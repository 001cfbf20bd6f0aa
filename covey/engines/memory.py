"""What memory that ran out looks like, on any device, and what an operator can do.  Used by the engines."""

import torch

from covey.errors import OperatorError

_SIGNS = ("out of memory", "can't allocate memory", "Cannot allocate memory")


def explain_memory(error: BaseException, engine: str) -> OperatorError | None:
    """OperatorError "engine_out_of_memory" if that is what `error` says; None for any other."""
    is_ours = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    if not is_ours and not (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)):
        return None
    reason = str(error).splitlines()[0] if str(error) else "no more is known"
    return OperatorError(
        "engine_out_of_memory",
        f"{engine} ran out of memory: {reason}",
        fix="Lower batch, or the tokens of one step, or give it more memory",
    )
