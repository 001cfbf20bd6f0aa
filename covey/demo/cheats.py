"""Dishonest engines that `covey demo` runs in real workers, to show how they are caught.

Each wraps an honest engine and presents its own output as honest.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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


class EditedPolicy(Wrapped):
    """Runs a copy of the policy's folder in which it has changed something. Subclasses define `edit`."""

    def load_policy(self, folder: Path, version: int) -> None:
        with tempfile.TemporaryDirectory(prefix="covey-cheat-") as name:
            edited = Path(name) / "policy"
            shutil.copytree(folder, edited)
            self.edit(edited)
            self._engine.load_policy(edited, version)

    def edit(self, folder: Path) -> None:
        """Change files of the copy in place."""
        raise NotImplementedError


class QuantizedWeights(EditedPolicy):
    """Runs coarser weights than it claims: bfloat16 with two mantissa bits instead of seven.

    The check `proof` rejects its submissions.
    """

    def edit(self, folder: Path) -> None:
        coarsen_weights(folder / WEIGHTS_FILE)


class PartialInt8(EditedPolicy):
    """Runs all linear layers of the last `layers` layers in int8, which saves memory and time. The rest is honest.

    `layers` is half of the model's layers if it is None. In float32 the check `proof` rejects its submissions.
    """

    def __init__(self, engine: Engine, *, layers: int | None = None) -> None:
        super().__init__(engine)
        self._layers = layers

    def edit(self, folder: Path) -> None:
        depth = int(json.loads((folder / "config.json").read_text())["num_hidden_layers"])
        first = depth - (depth // 2 if self._layers is None else self._layers)
        edit_matrices(
            folder / WEIGHTS_FILE,
            lambda name, weight: round_to_int8(weight) if _get_layer(name) >= first else weight,
        )


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


def edit_matrices(path: Path, change: Callable[[str, NDArray[np.float32]], NDArray[np.float32]]) -> None:
    """Replace the matrices of a bf16 safetensors file in place. `change` is given the name and values of each."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__" or len(entry["shape"]) != 2:
            continue
        begin, end = entry["data_offsets"]
        words = np.frombuffer(data, dtype="<u2", offset=start + begin, count=(end - begin) // 2)
        values = (words.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
        bits = np.ascontiguousarray(change(name, values), np.float32).view(np.uint32).ravel()
        words[:] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to the nearest value, ties to the even one
    path.write_bytes(data)


def round_to_int8(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Quantize the rows of a matrix symmetrically to 8 bits, with one scale per row, as common inference engines do."""
    scale = np.maximum(np.abs(weight).max(axis=1, keepdims=True), np.float32(1e-9)) / np.float32(127)
    rounded: NDArray[np.float32] = np.round(weight / scale) * scale
    return rounded


def _get_layer(name: str) -> int:
    """Return the number of the layer that a tensor belongs to, or -1 for embedding, head and final norm."""
    found = re.search(r"\.layers\.(\d+)\.", name)
    return int(found[1]) if found else -1


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
    "partial-int8": PartialInt8,
}


def get_cheat(kind: str) -> Callable[[Engine], Engine]:
    """Return the function that wraps an engine in this kind of cheat. Raises OperatorError("bad_cheat")."""
    if kind not in CHEATS:
        raise OperatorError(
            "bad_cheat", f"there is no kind of cheat called {kind}", fix=f"Use one of {', '.join(CHEATS)}"
        )
    return CHEATS[kind]
