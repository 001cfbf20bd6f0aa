"""What an operator may set of the vLLM engine, beside what every engine has: the table `vllm` of a role's settings."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from covey.errors import OperatorError


class VllmOptions(BaseModel):
    """Defaults hold for a small model on one machine.  Example: VllmOptions(tensor_parallel=4, memory_share=0.85)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_length: int | None = Field(default=None, ge=1)
    """Tokens of a prompt and its completion at most; None: those of the pool, or of the model's config."""
    cache_bytes: int | None = Field(default=None, ge=1)
    """Key-value cache of each device; None: what `memory_share` leaves on a GPU; on a CPU what a whole batch of the
    longest sequences takes, at most half of the machine's memory."""
    memory_share: float = Field(default=0.9, gt=0, le=1)
    """Of a GPU's memory, for weights, activations and cache."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Devices that share each layer."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """Tokens of one step at most; longer prompts are read in parts.  None: vLLM's choice."""
    prefix_caching: bool = True
    """Siblings share the cache of their prompt, in whole blocks."""
    block_size: int | None = Field(default=None, ge=1)
    """Tokens of a block of the cache; None: 32 on a CPU, which serves multiples of 32, vLLM's choice on a GPU."""
    eager: bool = True
    """False: compiled, with CUDA graphs, which takes minutes at the start and pays where a policy stays for hours."""
    interpreter: Path | None = None
    """A Python that has vLLM and Covey; None: this one."""
    start_seconds: float = Field(default=900.0, gt=0)
    """How long a model may take to start."""
    call_seconds: float = Field(default=3600.0, gt=0)
    """How long one call may take before the process is given up; a worker's may take two leases at most."""

    def fit(self, length: int) -> Self:
        """For sequences of `length` tokens at most, a pool's; raise OperatorError("bad_max_length") for less room."""
        if self.max_length is not None and self.max_length < length:
            raise OperatorError(
                "bad_max_length",
                f"max_length is {self.max_length}, and the pool's sequences have up to {length} tokens",
                fix="Leave max_length out, or join a pool of shorter ones",
            )
        return self if self.max_length is not None else self.model_copy(update={"max_length": length})
