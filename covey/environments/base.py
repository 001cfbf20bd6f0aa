"""What an environment owes worker, validator and trainer: prompts and rewards that follow from integers alone.

A spec stands in the pool's parameters, so every party builds the same environment from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSpec:
    """Which environment, with which options.

    Example: EnvironmentSpec(kind="reasoning_gym", options={"name": "spell_backward", "config": {"max_word_len": 5}}).
    """

    kind: str
    """A key of `registry`."""
    options: Mapping[str, object] = field(default_factory=dict)
    """JSON values; which ones, the environment of that kind says.  Unknown ones are refused.  "kept" is one of every
    kind: the questions that a filter left (`kept.pack_kept`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One question.  Example: Prompt(text="Spell this word backward ...: ohmic", item=0, target=None)."""

    text: str
    """What the model reads, the request for a length included."""
    item: int
    """Index of the item in the environment; enough to grade a completion."""
    target: int | None = None
    """Wanted length of the completion in tokens, if the environment asks for one."""


class Environment(Protocol):
    """Prompts of two splits that share no question, and an exact grade."""

    def prompt(self, slot_hash: int) -> Prompt:
        """The training prompt that a drawn integer (`protocol.seeding`, 0 or more, any size) stands for."""

    def held_out(self, n: int) -> list[Prompt]:
        """The first `n` different questions of the held-out split, always the same ones."""

    def reward(self, prompt: Prompt, completion_text: str, *, finished: bool, completion_tokens: int) -> float:
        """Reward of one completion.

        `finished`: it ended by itself.  `completion_tokens`: its length, the end-of-sequence token included.
        Never raises on account of `completion_text`: what cannot be graded earns as much as a wrong answer.
        """

    def compute_length_cost(self, text: str, *, completion_tokens: int) -> float:
        """The part of `reward` that the length took off, at least 0, from what the model read: `Prompt.text`, with
        whitespace after it."""
