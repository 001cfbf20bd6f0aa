"""A task that a policy of random weights learns in seconds: say the symbols of the prompt again.

Used by `trainer`, `trainer_peer` and `staleness`; imports neither our trainer nor an engine, so that the peer's memory
holds nothing of ours.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from benchmarks.isolated_process import read_peak

PAD, EOS, FIRST = 0, 1, 2
"""Token numbers; the symbols follow each other from FIRST."""
SYMBOLS = "abcdefgh"
LENGTH = 8
"""Symbols of a prompt, and tokens of its answer, which needs no end."""
CLIP, EPSILON, DELTA, BETAS, ADAM_EPSILON = 1.0, 0.2, 4.0, (0.9, 0.99), 1e-8
"""Largest norm of a gradient, bounds of the ratio and AdamW's settings: the same for every side."""

Prompt = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyTaskConfig:
    """One size.  Example: CopyTaskConfig(name="small", hidden=64, layers=2, ..., steps=450, timed=250)."""

    name: str
    hidden: int
    layers: int
    learning_rate: float
    steps: int
    timed: int
    """Steps whose time counts: those of learning, not of what is learned."""
    groups: int = 8
    """Prompts of a step."""
    siblings: int = 8

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.groups * self.siblings


SMALL = CopyTaskConfig(name="small", hidden=64, layers=2, learning_rate=7e-4, steps=450, timed=250)
LARGE = CopyTaskConfig(name="large", hidden=256, layers=6, learning_rate=1e-4, steps=30, timed=30)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A token a symbol, written with spaces between: "a c a h"."""
    names = ["<pad>", "<eos>", *SYMBOLS]
    words = models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")  # type: ignore[no-untyped-call]


def build_model(case: CopyTaskConfig, seed: int) -> PreTrainedModel:
    """A Qwen2 of fresh float32 weights; equal seeds give equal weights."""
    config = Qwen2Config(
        vocab_size=FIRST + len(SYMBOLS),
        hidden_size=case.hidden,
        intermediate_size=4 * case.hidden,
        num_hidden_layers=case.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config)


def draw_prompts(seed: int, count: int) -> list[Prompt]:
    """`count` prompts in the order in which every side sees them."""
    rng = random.Random(seed)
    return [tuple(rng.choices(range(FIRST, FIRST + len(SYMBOLS)), k=LENGTH)) for _ in range(count)]


def compute_reward(prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """Share of the prompt's symbols that stand at their places: 1/8 for whatever ignores the prompt, 1 for a copy."""
    return sum(a == b for a, b in zip(prompt, tokens, strict=False)) / len(prompt)


def find_step(rewards: Sequence[float], target: float, window: int = 10) -> int | None:
    """Steps after which the mean reward of the last `window` ones has reached `target`; None where it never has."""
    for end in range(window, len(rewards) + 1):
        if sum(rewards[end - window : end]) >= target * window:
            return end
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """What one side did; lists have an entry a step."""

    rewards: list[float]
    """Means of the samples."""
    wall: list[float]
    cpu: list[float]
    """Seconds."""
    baseline: int
    """Bytes at most before the first step: libraries and the model."""
    peak: int
    """Bytes at most."""


class RunRecorder:
    """What one side did: rewards, and the time since it began, step by step."""

    def __init__(self) -> None:
        self._rewards: list[float] = []
        self._stamps: list[tuple[float, float]] = [read_clocks()]
        self._baseline = read_peak()

    def add(self, rewards: Sequence[float]) -> None:
        """Those of a step's samples."""
        self._rewards.append(sum(rewards) / len(rewards))

    def stamp(self) -> None:
        """A step ends."""
        self._stamps.append(read_clocks())

    def build_run(self) -> TrainingRun:
        """All of it."""
        wall, cpu = ([b - a for a, b in pairwise(clock)] for clock in zip(*self._stamps, strict=True))
        return TrainingRun(rewards=self._rewards, wall=wall, cpu=cpu, baseline=self._baseline, peak=read_peak())


def read_clocks() -> tuple[float, float]:
    """Wall and CPU seconds of this process."""
    return time.perf_counter(), time.process_time()
