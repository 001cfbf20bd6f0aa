"""Models of random weights in the shapes of Qwen3 0.6B and Qwen2 1.5B and of 0.1B, engines around them, and requests.

A tiny model takes the place of all where sizes are tiny.  Its heads are as wide as vLLM's kernels for CPUs require.
"""

import random
from collections.abc import Sequence
from typing import cast

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from benchmarks.gpu.section_run import SectionRun
from covey.engines.base import Completion, GenerationRequest, ReplayRequest
from covey.engines.hf.decode import widen_head
from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.policy_files import get_head
from covey.model.tiny import BOS, EOS, PAD, build_tokenizer
from covey.toploc import proofs
from covey.toploc.topk import Capture

VOCABULARY = 151_936
"""Number of tokens of Qwen's vocabulary."""
TINY_VOCABULARY = 1000
"""Number of tokens of the tiny model's vocabulary."""
LEAST, SMALL, LARGE = "0.1B", "0.6B", "1.5B"
LONGEST = 70_000
"""Maximum sequence length of the models in tokens."""
PEAK = 8.0
"""Factor of the head that makes random logits as peaked as those of language: 3 nats instead of 12."""
SIBLINGS = 8
"""Number of consecutive requests with the same prompt, as in a group."""
CAPTURE = Capture(window=proofs.WINDOW, top_k=proofs.TOP_K)


def build_config(shape: str, *, is_tied: bool = True) -> PretrainedConfig:
    """Build the config of a shape: LEAST, SMALL, LARGE or "tiny".  If `is_tied`, head and embedding are one matrix."""
    if shape == SMALL:
        config: PretrainedConfig = Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=1024, num_hidden_layers=28, intermediate_size=3072,
            num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=LONGEST,
        )  # fmt: skip
    elif shape == LARGE:
        config = Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=1536, num_hidden_layers=28, intermediate_size=8960,
            num_attention_heads=12, num_key_value_heads=2, max_position_embeddings=LONGEST,
        )  # fmt: skip
    elif shape == LEAST:
        config = Qwen2Config(
            vocab_size=32_000, hidden_size=768, num_hidden_layers=12, intermediate_size=2048,
            num_attention_heads=12, num_key_value_heads=4, max_position_embeddings=LONGEST,
        )  # fmt: skip
    else:
        config = Qwen2Config(
            vocab_size=TINY_VOCABULARY, hidden_size=64, num_hidden_layers=3, intermediate_size=128,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=LONGEST,
        )  # fmt: skip
    config.tie_word_embeddings = is_tied
    config.pad_token_id, config.eos_token_id, config.bos_token_id = PAD, EOS, BOS
    return config


def build_model(
    run: SectionRun, shape: str, dtype: torch.dtype = torch.float32, *, is_tied: bool = True
) -> PreTrainedModel:
    """Build a model of seeded random weights on the run's device, in evaluation mode."""
    config = build_config(run.pick(shape, "tiny"), is_tied=is_tied)
    torch.manual_seed(0)
    with torch.device(run.device):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, attn_implementation="sdpa"
        )
    return cast(PreTrainedModel, model.train(False))


@torch.no_grad()
def build_peaked(run: SectionRun, shape: str) -> PreTrainedModel:
    """Build a model in bfloat16 whose head has its own weights and gives peaked logits."""
    model = build_model(run, shape, torch.bfloat16, is_tied=False)
    get_head(model).weight.mul_(PEAK)
    return model


def open_engine(model: PreTrainedModel, max_batch: int) -> HuggingFaceEngine:
    """Open the engine `hf` around a model, whose head gives float32 logits from then on, as in a worker."""
    widen_head(model)
    return HuggingFaceEngine.from_model(model, build_tokenizer(), max_batch=max_batch)


def draw_requests(
    limits: Sequence[int], *, prompt: int, vocabulary: int, seed: int = 0, siblings: int = SIBLINGS
) -> list[GenerationRequest]:
    """Draw a request for each limit of completion tokens, with prompts of `prompt` random tokens."""
    rng = random.Random(seed)
    prompts = [tuple(rng.choices(range(3, vocabulary), k=prompt)) for _ in range(-(-len(limits) // siblings))]
    return [
        GenerationRequest(prompt=prompts[i // siblings], seed=rng.getrandbits(63), max_tokens=limit)
        for i, limit in enumerate(limits)
    ]


def build_claims(requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> list[ReplayRequest]:
    """Return what a validator replays."""
    pairs = zip(requests, completions, strict=True)
    return [ReplayRequest(prompt=one.prompt, tokens=made.tokens, seed=one.seed) for one, made in pairs]


def count_tokens(completions: Sequence[Completion]) -> int:
    """Return the number of generated tokens."""
    return sum(len(each.tokens) for each in completions)
