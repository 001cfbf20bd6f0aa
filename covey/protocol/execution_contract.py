"""Execution contracts: who can check whom bit for bit.

Two engines with equal contracts compute equal bits for equal sequences, whatever else is in their batches. A pool's
parameters list the contracts that it accepts. Rollouts, nodes, validators and evidence name a contract by its digest.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from covey.protocol import canonical
from covey.protocol.ids import Hash

Version = Annotated[str, Field(pattern=r"^[ -~]+$", max_length=64)]
MAX_CONTRACTS = 16
"""Maximum number of contracts that a pool accepts. A quorum of validators is needed for each."""


class ExecutionContract(BaseModel):
    """Everything that decides the bits of an engine's results for a given policy.

    Example: `ExecutionContract(engine_version="0.32.0", torch="2.13.0", architecture="NVIDIA H200, sm_90", ...)`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Literal["vllm"] = "vllm"
    """Engine that proves its contract when it starts."""
    engine_version: Version
    """Version of the engine's package, with its build: "0.32.0+cpu"."""
    torch: Version
    """Version of torch, with its build: "2.13.0+cu130"."""
    attention_backend: Annotated[str, Field(pattern=r"^[A-Z0-9_]{1,32}$")]
    """Attention backend by vLLM's name: "TRITON_ATTN"."""
    attention_version: Version
    """Version of the attention's kernels: that of Triton, "FlashAttention 3", or the engine's own."""
    dtype: Literal["float32", "bfloat16"]
    """Number format in which the model computes."""
    tensor_parallel_size: int = Field(ge=1, le=1024)
    """Number of devices that share each layer. It decides the order of sums."""
    architecture: Version
    """Name and compute capability of the card: "NVIDIA H200, sm_90". For a CPU, its model and instruction set.

    The name is included because kernels may choose their tiles by the number of a card's processors.
    """
    batch_invariant: bool
    """Whether vLLM's batch-invariant kernels are on. A CPU has none, and needs none without AMX tiles."""
    compilation: Literal["eager", "compiled"]
    """Whether the model runs eagerly, or compiled and with CUDA graphs."""
    head_dtype: Literal["float32", "model"] = "model"
    """Number format of the logits: float32, or `dtype`. The products have the operands' format either way."""
    block_size: int = Field(ge=0, le=1 << 16)
    """Number of tokens per block of the KV cache. 0: the engine's default, which follows from the other fields."""
    enable_prefix_caching: bool
    """Whether completions of one prompt share its KV cache."""
    threads: int = Field(ge=0, le=1024)
    """Number of threads of the engine on a CPU, which decides the order of sums. 0: it runs on a GPU."""
    sampler: int = Field(ge=1)
    """Version of Covey's sampler, by which tokens, margins and log-probabilities follow from logits."""

    def encode(self) -> bytes:
        """Return the contract as canonical JSON."""
        return canonical.to_bytes(self.model_dump(mode="json"))

    @property
    def digest(self) -> Hash:
        """SHA-256 of the canonical JSON."""
        return canonical.sha256(self.encode())

    def describe(self) -> str:
        """Return the contract on one line, with the card first."""
        cards = "" if self.tensor_parallel_size == 1 else f"{self.tensor_parallel_size} x "
        parts = [
            f"{cards}{self.architecture}", f"{self.engine} {self.engine_version}", f"torch {self.torch}",
            f"{self.attention_backend} ({self.attention_version})", self.dtype, self.compilation,
            *(["float32 logits"] if self.head_dtype == "float32" else []),
            "batch-invariant" if self.batch_invariant else "not batch-invariant",
            f"blocks of {self.block_size}" if self.block_size else "default blocks",
            "prefix caching" if self.enable_prefix_caching else "no prefix caching",
            *([f"{self.threads} threads"] if self.threads else []), f"sampler {self.sampler}",
        ]  # fmt: skip
        return "; ".join(parts)

    def is_replaced_by(self, newer: Self) -> bool:
        """Return whether a new contract is for the same cards and kernels, so that a pool lists it instead."""
        names = ("architecture", "tensor_parallel_size", "attention_backend")
        return all(getattr(self, name) == getattr(newer, name) for name in names)

    def find_differences(self, others: Iterable["ExecutionContract"]) -> dict[str, tuple[object, object]]:
        """Return the fields in which the most similar of `others` differs: by name, its value and this one's.

        Example: {"torch": ("2.13.0", "2.11.0")}. Empty if there are no others, or if one is equal.
        """
        own = self.model_dump()
        found = [
            {name: (value, own[name]) for name, value in other.model_dump().items() if value != own[name]}
            for other in others
        ]
        return min(found, key=len, default={})


def list_digests(contracts: Iterable[ExecutionContract]) -> Mapping[Hash, ExecutionContract]:
    """Return contracts by their digests, in the order of the pool's parameters."""
    return {contract.digest: contract for contract in contracts}
