"""The table `vllm` in a role's settings, which configures the vLLM engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from covey.errors import OperatorError


class NotExactError(OperatorError):
    """OperatorError("not_exact") with the options of an engine that has failed its proof, or did not start."""

    def __init__(self, cause: OperatorError, tried: "VllmOptions") -> None:
        super().__init__("not_exact", cause.message.removesuffix(f". {cause.fix}"), fix=cause.fix)
        self.tried = tried


BLOCK = 32
"""Tokens per block of the KV cache on a CPU, where vLLM supports multiples of 32."""


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
    enforce_eager: bool | None = None
    """Whether the model runs without compilation and CUDA graphs. Compilation takes one or two minutes at the first
    start, and needs a C++ compiler on a CPU. None: on a GPU the model is compiled, because without graphs a GPU waits
    for Python most of the time, and on a CPU it is not. With `exact` on a GPU a role tries graphs first, and runs
    without them if they fail the proof.
    """
    head_dtype: Literal["float32", "model"] | None = None
    """Number format of the logits: float32, or that of the model. None: float32 on a GPU and with `exact`. In the exact
    lane a role runs with logits in the model's format if float32 fails the proof.
    """
    async_scheduling: bool | None = None
    """Whether vLLM schedules a step before it knows the tokens of the step before. None: on a GPU, where the scheduler
    then runs while the GPU computes, but not on a CPU, where vLLM does not support it.
    """
    exact: bool | None = None
    """Whether equal sequences must give equal bits, whatever else is computed with them. The engine proves it when it
    starts. On a GPU this is vLLM's batch-invariant mode, which generates at about three quarters of the rate. None:
    if the pool accepts this machine's execution contract. False: the role works in the calibrated lane.
    """
    proof_length: int = Field(default=232, ge=64)
    """Number of tokens of the longest sequence with which an exact engine proves itself at its start."""
    attention_backend: str | None = Field(default=None, pattern=r"^[A-Z0-9_]{1,32}$")
    """vLLM's attention backend, for example "FLASH_ATTN". None: vLLM's choice, and with `exact` on a GPU TRITON_ATTN,
    which generated faster than FLASH_ATTN in the batch-invariant mode of an H200.
    """
    enable_sleep_mode: bool | None = None
    """Whether `covey train` lets vLLM release its GPU memory while the learner computes. It has no effect on a CPU. In
    a pool nothing is released, and true only makes vLLM start with its cumem allocator. None: if vLLM has the
    learner's GPU and they take turns.
    """
    interpreter: Path | None = None
    """Path of a Python with vLLM and the same version of Covey. None: the Python that runs this process."""
    start_seconds: float = Field(default=900.0, gt=0)
    """Timeout in seconds for the start of a model."""
    call_seconds: float = Field(default=3600.0, gt=0)
    """Timeout of one call in seconds.

    After it the engine's process is ended. A worker's call may last at most two leases.
    """

    def resolve(self, device: str) -> Self:
        """Return options without None where the default depends on the device, for example "cuda:1".

        In the exact lane graphs have to be asked for, as `list_exact` does.
        """
        is_cpu, is_exact = device.startswith("cpu"), bool(self.exact)
        backend = self.attention_backend or ("TRITON_ATTN" if is_exact and not is_cpu else None)
        defaults = {
            "enforce_eager": is_exact or is_cpu,
            "async_scheduling": not is_cpu,
            "head_dtype": "float32" if is_exact or not is_cpu else "model",
        }
        chosen = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return self.model_copy(update={**chosen, "exact": is_exact, "attention_backend": backend})

    def list_exact(self, device: str, dtype: str) -> list[Self]:
        """Return the options of the exact lane for a device and the model's number format, the preferred ones first.

        They differ in what is not set: whether the model is compiled, and the number format of the logits.
        """
        is_cpu = device.startswith("cpu")
        modes = [is_cpu] if is_cpu else [False, True]
        heads = ["model"] if dtype == "float32" else ["float32", "model"]
        return [
            self.model_copy(update={"exact": True, "enforce_eager": is_eager, "head_dtype": head})
            for head in ([self.head_dtype] if self.head_dtype and dtype != "float32" else heads)
            for is_eager in (modes if self.enforce_eager is None else [self.enforce_eager])
        ]

    def narrow(self, tried: "VllmOptions") -> Self:
        """Return the options to try after resolved ones have failed the proof.

        Eager execution comes first, then logits in the model's format, then the calibrated lane.
        """
        if self.enforce_eager is None and tried.enforce_eager is False:
            return self.model_copy(update={"enforce_eager": True})
        if self.head_dtype is None and tried.head_dtype == "float32":
            return self.model_copy(update={"head_dtype": "model"})
        return self.model_copy(update={"exact": False})

    def describe_mode(self) -> str:
        """Return how an engine with these options runs, for messages."""
        if self.exact is False:
            return "the calibrated lane"
        logits = {None: "", "float32": ", float32 logits", "model": ", logits in the model's format"}[self.head_dtype]
        return ("eager execution" if self.enforce_eager else "compilation and graphs") + logits

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
