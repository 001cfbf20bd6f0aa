"""Dishonest engines that `covey demo` runs in real workers, to show how they are caught.

Each wraps an honest engine and presents its own output as honest.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from covey.engines.base import Completion, Engine, GenerationRequest, Replay, ReplayRequest
from covey.errors import OperatorError
from covey.model.text import Tokenizer, decode_completion
from covey.protocol.seeding import SEED_BITS
from covey.toploc.topk import Capture

WEIGHTS_FILE = "model.safetensors"


class Wrapped:
    """An engine that delegates everything to the wrapped one. Each cheat overrides one method."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def policy_version(self) -> int | None:
        return self._engine.policy_version

    @property
    def load_pause(self) -> float:
        return self._engine.load_pause

    @property
    def hidden_size(self) -> int:
        return self._engine.hidden_size

    @property
    def vocabulary_size(self) -> int:
        return self._engine.vocabulary_size

    @property
    def end_tokens(self) -> frozenset[int]:
        return self._engine.end_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def load_policy(self, folder: Path, version: int) -> None:
        self._engine.load_policy(folder, version)

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        return self._engine.generate(requests, temperature=temperature, capture=capture)

    def replay(
        self, sequences: Sequence[ReplayRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Replay]:
        return self._engine.replay(sequences, temperature=temperature, capture=capture)

    def close(self) -> None:
        self._engine.close()


class QuantizedWeights(Wrapped):
    """Runs coarser weights than it claims: bfloat16 with two mantissa bits instead of seven.

    The check `proof` rejects its submissions.
    """

    def load_policy(self, folder: Path, version: int) -> None:
        with tempfile.TemporaryDirectory(prefix="covey-cheat-") as name:
            cheap = Path(name) / "policy"
            shutil.copytree(folder, cheap)
            coarsen_weights(cheap / WEIGHTS_FILE)
            self._engine.load_policy(cheap, version)


class BestOfN(Wrapped):
    """Samples every slot with n seeds and submits the completion that its own scoring function rates highest.

    The check `token_margin` rejects its submissions.
    """

    def __init__(self, engine: Engine, *, n: int, score: Callable[[str, str], float]) -> None:
        super().__init__(engine)
        self._n, self._score = n, score

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        tries = [
            GenerationRequest(prompt=r.prompt, seed=(r.seed + i) % (1 << SEED_BITS), max_tokens=r.max_tokens)
            for r in requests
            for i in range(self._n)
        ]
        completions = self._engine.generate(tries, temperature=temperature, capture=capture)
        slots = [completions[i : i + self._n] for i in range(0, len(completions), self._n)]
        return [max(slot, key=lambda c: self._rate(r, c)) for r, slot in zip(requests, slots, strict=True)]

    def _rate(self, request: GenerationRequest, completion: Completion) -> float:
        prompt = decode_completion(self.tokenizer, request.prompt, frozenset())
        answer = decode_completion(self.tokenizer, completion.tokens, self.end_tokens)
        return self._score(prompt, answer) + completion.finished


class LikeliestOfN(BestOfN):
    """Samples every slot with n seeds and submits the completion that is likeliest under the policy.

    On any task it is correct more often than a single sample. The check `token_margin` rejects its submissions.
    """

    def __init__(self, engine: Engine, *, n: int) -> None:
        super().__init__(engine, n=n, score=lambda *_: 0.0)

    def _rate(self, request: GenerationRequest, completion: Completion) -> float:
        return sum(completion.logprobs)


def coarsen_weights(path: Path) -> None:
    """Clear the five lowest mantissa bits of every value of a bf16 safetensors file, in place."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    values = np.frombuffer(data, dtype="<u2", offset=start)
    values &= 0xFFE0
    path.write_bytes(data)


def score_spelling(prompt: str, answer: str) -> float:
    """Return 1 if the answer is the prompt's last word reversed, which is the demo's default task.

    Otherwise return 0.
    """
    return float(answer == prompt.strip().rsplit(" ", 1)[-1][::-1])


CHEATS: dict[str, Callable[[Engine], Engine]] = {
    "quantized": QuantizedWeights,
    "best-of-n": lambda engine: BestOfN(engine, n=4, score=score_spelling),
    "likeliest-of-n": lambda engine: LikeliestOfN(engine, n=4),
}


def get_cheat(kind: str) -> Callable[[Engine], Engine]:
    """Return the function that wraps an engine in this kind of cheat. Raises OperatorError("bad_cheat")."""
    if kind not in CHEATS:
        raise OperatorError(
            "bad_cheat", f"there is no kind of cheat called {kind}", fix=f"Use one of {', '.join(CHEATS)}"
        )
    return CHEATS[kind]
