"""What an engine owes its callers: worker (generate), validator (replay), evaluation and benchmarks.

Values cross this border as numpy arrays and tuples, so callers need no torch.  Row t of anything is the row that
predicted completion token t; row 0 belongs to the last prompt token, and the state after the last token is not kept.
Of the states only what proofs hold leaves the engine, so that no more leaves an accelerator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from covey.model.text import Tokenizer
from covey.toploc.topk import Capture, Top


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One completion to generate.  Example: Request(prompt=(2, 71, 13), seed=2**62 + 5, max_tokens=8)."""

    prompt: tuple[int, ...]
    seed: int
    """The slot's seed, 0 .. 2**63 - 1 (`protocol.seeding`); it keys the noise of every token."""
    max_tokens: int
    """Length limit of the completion, the end token included; at least 1."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Completion:
    """What an engine generated for one request."""

    policy_version: int
    """Of the weights that all of its tokens were sampled with."""
    tokens: tuple[int, ...]
    """1 .. max_tokens tokens; the end token is kept when one came."""
    logprobs: tuple[float, ...]
    """log p(token) under the unmodified model (temperature 1, no noise): float32 values, one per token."""
    tops: tuple[Top, ...]
    """One a window of `Capture.window` tokens: the top of the bfloat16 last hidden states after the final norm.
    Empty if nothing was to be captured."""
    finished: bool
    """True: the last token is one of the end tokens.  False: the length limit cut it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayRequest:
    """One claimed completion to check.  `tokens` may come from a stranger: an engine refuses what it cannot hold."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Replay:
    """What the policy says about one claimed completion of n tokens."""

    tops: tuple[Top, ...]
    """As in `Completion`."""
    logprobs: NDArray[np.float32]
    """float32[n]: log p(claimed token) under the unmodified model."""
    margins: NDArray[np.float32]
    """float32[n], at least 0: by how much the claimed token lost to the seeded argmax; 0 where it won.  The last one
    is the test of an end token; it is stricter than the paper's p > 0.1 (section 2.3.3)."""


class Engine(Protocol):
    """A policy that can be replaced in place.  All methods are synchronous.

    `generate` may be called from several threads: calls run beside each other or in turns, as the engine can.
    `load_policy` waits until none runs.
    """

    @property
    def policy_version(self) -> int | None:
        """Version of the loaded policy; None before the first `load_policy`."""

    @property
    def hidden_size(self) -> int:
        """Width of the last hidden state."""

    @property
    def vocabulary_size(self) -> int:
        """Number of rows of the language-model head; the noise covers exactly these."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids of the tokens that end a completion: any of them does."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The policy's tokenizer."""

    def load_policy(self, folder: Path, version: int) -> None:
        """Replace the weights by those of `folder`/model.safetensors.

        Raises ProtocolError("policy_mismatch") and keeps the old policy if they do not fit.
        """

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        """Sample each request with its seeded noise; results in the order of the requests."""

    def replay(
        self, sequences: Sequence[ReplayRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Replay]:
        """Prefill each claimed completion and score it; results in the order of the sequences.

        Raises ProtocolError("malformed_tokens") for a token outside the vocabulary or an empty sequence.
        """

    def close(self) -> None:
        """Give back what the engine holds outside this process."""
