"""A task that a policy of random weights learns in seconds: copy the symbols of the prompt.

The module imports neither Covey's trainer nor an engine, so that the memory of a peer's process holds neither.
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
"""Token ids.  The symbols have consecutive ids from FIRST."""
SYMBOLS = "abcdefgh"
LENGTH = 8
"""Symbols of a prompt and tokens of its answer, which needs no end token."""
CLIP, EPSILON, DELTA, BETAS, ADAM_EPSILON = 1.0, 0.2, 4.0, (0.9, 0.99), 1e-8
"""Largest gradient norm, bounds of the ratio, and AdamW's betas and epsilon: equal for every side."""

Prompt = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyTaskConfig:
    """Model and run of one size.  Example: CopyTaskConfig(name="small", hidden=64, ..., steps=450, timed=250)."""

    name: str
    """End of the names of the measurements."""
    hidden: int
    """Width of the model."""
    layers: int
    """Number of the model's layers."""
    learning_rate: float
    """AdamW's learning rate, which is constant."""
    steps: int
    """Number of steps of the run."""
    timed: int
    """Number of first steps whose time counts, in which the policy still learns."""
    groups: int = 8
    """Number of prompts in a step."""
    siblings: int = 8
    """Number of samples per prompt."""

    @property
    def batch(self) -> int:
        """Number of samples in a step."""
        return self.groups * self.siblings


SMALL = CopyTaskConfig(name="small", hidden=64, layers=2, learning_rate=7e-4, steps=450, timed=250)
LARGE = CopyTaskConfig(name="large", hidden=256, layers=6, learning_rate=1e-4, steps=30, timed=30)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per symbol, of texts such as "a c a h"."""
    names = ["<pad>", "<eos>", *SYMBOLS]
    words = models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")  # type: ignore[no-untyped-call]


def build_model(case: CopyTaskConfig, seed: int) -> PreTrainedModel:
    """Build a Qwen2 of fresh float32 weights.  Equal seeds give equal weights."""
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
    """Draw `count` prompts in the order in which every side sees them."""
    rng = random.Random(seed)
    return [tuple(rng.choices(range(FIRST, FIRST + len(SYMBOLS)), k=LENGTH)) for _ in range(count)]


def compute_reward(prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """Compute the share of the prompt's symbols that are in their places.

    A copy earns 1, and an answer that ignores the prompt 1/8 on average.
    """
    return sum(a == b for a, b in zip(prompt, tokens, strict=False)) / len(prompt)


def find_step(rewards: Sequence[float], target: float, window: int = 10) -> int | None:
    """Find the number of steps after which the mean reward of the last `window` steps first reaches `target`.

    None means that it never does.
    """
    for end in range(window, len(rewards) + 1):
        if sum(rewards[end - window : end]) >= target * window:
            return end
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """Rewards, seconds and memory of one side.  Lists have one entry per step."""

    rewards: list[float]
    """Mean reward of each step's samples."""
    wall: list[float]
    """Wall seconds of each step."""
    cpu: list[float]
    """CPU seconds of each step."""
    baseline: int
    """Peak of memory before the first step, in bytes: libraries and the model."""
    peak: int
    """Peak of memory of the run, in bytes."""


class RunRecorder:
    """Recorder of a `TrainingRun`, whose time begins when the recorder is made."""

    def __init__(self) -> None:
        self._rewards: list[float] = []
        self._stamps: list[tuple[float, float]] = [read_clocks()]
        self._baseline = read_peak()

    def add(self, rewards: Sequence[float]) -> None:
        """Add the rewards of a step's samples."""
        self._rewards.append(sum(rewards) / len(rewards))

    def stamp(self) -> None:
        """Record that a step has ended."""
        self._stamps.append(read_clocks())

    def build_run(self) -> TrainingRun:
        """Build the run from all steps so far."""
        wall, cpu = ([b - a for a, b in pairwise(clock)] for clock in zip(*self._stamps, strict=True))
        return TrainingRun(rewards=self._rewards, wall=wall, cpu=cpu, baseline=self._baseline, peak=read_peak())


def read_clocks() -> tuple[float, float]:
    """Read the wall clock and the CPU seconds of this process."""
    return time.perf_counter(), time.process_time()
