"""The engine that a setting names; called by composition roots only.  Imports the engine's libraries late."""

from typing import get_args

from covey.engines.base import Engine
from covey.errors import OperatorError
from covey.protocol.params import EngineName


def build_engine(name: str, *, dtype: str, batch: int, device: str = "cpu", threads: int = 1) -> Engine:
    """An engine without a policy.  `batch`: completions that run together at most; `threads`: of this process."""
    if name != "hf":
        raise OperatorError("bad_engine", f"there is no engine {name}", fix="Name hf")
    from covey.engines.hf import HuggingFaceEngine, set_threads

    set_threads(threads)
    return HuggingFaceEngine(dtype=dtype, max_batch=batch, device=device)


def require_engine(name: str, wanted: EngineName, role: str) -> None:
    """Raise OperatorError when the pool's thresholds were calibrated for another engine in this role."""
    if wanted not in {"any", name}:
        raise OperatorError(
            "wrong_engine",
            f"this pool's thresholds hold for {role}s on {wanted}, not on {name}",
            fix=f"Set engine to {wanted}, one of {', '.join(get_args(EngineName))}",
        )
