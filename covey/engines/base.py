"""The interface of engines. Workers generate with it and validators replay with it; evaluation and benchmarks use it
too.

Values cross this interface as numpy arrays and tuples, so callers need no torch. Row t of any result is the row that
predicted completion token t. Row 0 therefore belongs to the last prompt token, and the state after the last token is
not kept. Of the hidden states only the values that proofs contain leave the engine, so little leaves an accelerator.
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
    """One completion to generate. Example: GenerationRequest(prompt=(2, 71, 13), seed=2**62 + 5, max_tokens=8)."""

    prompt: tuple[int, ...]
    """Tokens of the prompt, at least one."""
    seed: int
    """Seed of the slot, 0 .. 2**63 - 1 (see `protocol.seeding`). It is the key of every token's noise."""
    max_tokens: int
    """Maximum number of completion tokens, including the end token. At least 1."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Completion:
    """A generated completion of one request."""

    policy_version: int
    """Version of the weights that all tokens were sampled with."""
    tokens: tuple[int, ...]
    """Sampled tokens, from 1 to max_tokens. Includes the end token if there was one."""
    logprobs: tuple[float, ...]
    """log p(token) under the unmodified model (temperature 1, no noise), one float32 value per token."""
    tops: tuple[Top, ...]
    """Top values, in bfloat16, of the last hidden states after the final norm: one `Top` per `Capture.window` tokens.

    Empty if the call had no capture.
    """
    finished: bool
    """Whether the last token is an end token. If not, the length limit ended the completion."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayRequest:
    """A claimed completion to check."""

    prompt: tuple[int, ...]
    """Tokens of the prompt, at least one."""
    tokens: tuple[int, ...]
    """Claimed tokens, at least one. They may come from an untrusted peer, so an engine rejects invalid ones."""
    seed: int
    """Seed of the slot, 0 .. 2**63 - 1."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Replay:
    """The policy's own values for a claimed completion of n tokens."""

    tops: tuple[Top, ...]
    """Top values of the last hidden states, one `Top` per window, as in `Completion`."""
    logprobs: NDArray[np.float32]
    """log p(claimed token) under the unmodified model, float32[n]."""
    margins: NDArray[np.float32]
    """Margin by which each claimed token lost to the seeded argmax, float32[n]. 0 if the token is the argmax.

    The margin of the last token also tests whether the end token was sampled. This test is stricter than the paper's
    p > 0.1 (section 2.3.3).
    """


class Engine(Protocol):
    """A model whose policy can be replaced in place. All methods are synchronous.

    Several threads may call `generate`. An engine runs these calls concurrently or in turn. `load_policy` waits until
    no call is running.
    """

    @property
    def policy_version(self) -> int | None:
        """Version of the loaded policy. None before the first `load_policy`."""

    @property
    def load_pause(self) -> float:
        """Seconds for which the last `load_policy` kept the engine from generating. 0 before the first one."""

    @property
    def hidden_size(self) -> int:
        """Width of the last hidden state."""

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens in the vocabulary: the rows of the language-model head.

        Each token gets its own sampling noise.
        """

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids of the tokens that end a completion. Any one of them ends it."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the policy."""

    def load_policy(self, folder: Path, version: int) -> None:
        """Replace the weights with those in `folder`/model.safetensors. Tensors that are equal may be left as they are.

        Raises ProtocolError("policy_mismatch") and keeps the old policy if the weights do not fit the model.
        """

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        """Sample a completion for each request with its seeded noise. Results have the order of the requests."""

    def replay(
        self, sequences: Sequence[ReplayRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Replay]:
        """Score each claimed completion in one prefill. Results have the order of the requests.

        Raises ProtocolError("malformed_tokens") if a token is outside the vocabulary, or if a prompt or completion is
        empty.
        """

    def close(self) -> None:
        """Release the resources that the engine holds outside this process."""
