"""The table `vllm` in a role's settings, which configures the vLLM engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from covey.errors import OperatorError


class VllmOptions(BaseModel):
    """Settings of vLLM with vLLM's own names. The defaults suit a small model on one machine.

    Example: VllmOptions(tensor_parallel_size=4, gpu_memory_utilization=0.85).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    renamed: ClassVar[Mapping[str, str]] = {
        "max_length": "max_model_len",
        "cache_bytes": "kv_cache_memory_bytes",
        "memory_share": "gpu_memory_utilization",
        "tensor_parallel": "tensor_parallel_size",
        "batch_tokens": "max_num_batched_tokens",
        "prefix_caching": "enable_prefix_caching",
        "eager": "enforce_eager",
    }

    max_model_len: int | None = Field(default=None, ge=1)
    """Maximum number of tokens of a prompt and its completion. None: the pool's limits, or the model's config."""
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1)
    """Size in bytes of the KV cache on each device. Sequences that do not fit are preempted and computed again. None:
    on a GPU the memory that `gpu_memory_utilization` leaves, on a CPU enough for a full batch of the longest sequences,
    but at most half of the machine's memory.
    """
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Maximum fraction of a GPU's memory for weights, activations and KV cache together."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Number of devices that share each layer (tensor parallelism)."""
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens of one scheduler step. Longer prompts are prefilled in parts. None: vLLM's default."""
    enable_prefix_caching: bool = True
    """Whether siblings share the KV cache of their prompt, in whole blocks."""
    block_size: int | None = Field(default=None, ge=1)
    """Number of tokens per block of the KV cache. None: 32 on a CPU, where vLLM supports multiples of 32, and vLLM's
    default on a GPU."""
    enforce_eager: bool = True
    """Whether the model runs without compilation and CUDA graphs. Compilation takes minutes at the first start, and
    needs a C++ compiler on a CPU. It is worthwhile if a policy is used for hours.
    """
    interpreter: Path | None = None
    """Path of a Python with vLLM and the same version of Covey. None: the Python that runs this process."""
    start_seconds: float = Field(default=900.0, gt=0)
    """Timeout in seconds for the start of a model."""
    call_seconds: float = Field(default=3600.0, gt=0)
    """Timeout of one call in seconds.

    After it the engine's process is ended. A worker's call may last at most two leases.
    """

    def fit(self, length: int) -> Self:
        """Return options whose `max_model_len` suffices for a pool's sequences of up to `length` tokens.

        Raises OperatorError("bad_max_length") if `max_model_len` is set to less than `length`.
        """
        if self.max_model_len is not None and self.max_model_len < length:
            raise OperatorError(
                "bad_max_length",
                f"max_model_len is {self.max_model_len}, but the pool's sequences can have {length} tokens",
                fix="Remove max_model_len, or join a pool with shorter sequences",
            )
        return self if self.max_model_len is not None else self.model_copy(update={"max_model_len": length})
