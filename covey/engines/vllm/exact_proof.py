"""Proves at the start of an engine that it is exact: equal sequences give equal bits in any batch and in a replay."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from covey.engines.vllm.frames import Arrays
from covey.errors import OperatorError
from covey.toploc.proofs import WINDOW

PROVED = 64
"""Maximum number of completions with which an engine proves that it is exact. Each has one proof window."""
USUAL_LENGTH = 200
"""Number of tokens of the prompt of the second completion, after which prompts get shorter: several blocks of the KV
cache."""
_VALUES = ("tokens", "logprobs", "indices", "bits")
Longs = NDArray[np.int64]


class Provable(Protocol):
    """What a proof uses of `Serving`."""

    @property
    def max_batch(self) -> int: ...
    @property
    def longest(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def next_key(self) -> int: ...
    def generate_alone(self, prompts: Arrays, limit: int) -> Arrays: ...
    def replay_alone(self, prompts: Arrays, made: Arrays) -> Arrays: ...
    def reset_cache(self) -> None: ...
    def start_trace(self, key: int, position: int) -> None: ...
    def stop_trace(self) -> Mapping[str, str]: ...


class _Difference(NamedTuple):
    """The first token at which two computations of one completion differ."""

    what: str
    """What was compared with the batch: "replay" or "alone"."""
    completion: int
    token: int


def prove_exact(serving: Provable, *, length: int) -> None:
    """Generate completions in a batch, again with their prompts in the prefix cache, and the first and the last one
    alone, and replay all of them.

    Prompts have different lengths. The first one and its completion have `length` tokens, if the engine supports that
    many, and only they are longer than USUAL_LENGTH. Raises OperatorError("not_exact") unless all tokens,
    log-probabilities and top values are equal in every bit. The error names the first layer that differs. In a compiled
    model it is the first one whose attention gets other queries, keys or values.
    """
    lengths, limit = _choose_lengths(serving, length)
    prompts = _build_prompts(serving, lengths)
    made, cached = serving.generate_alone(prompts, limit), serving.generate_alone(prompts, limit)
    replayed = serving.replay_alone(prompts, made)
    serving.reset_cache()
    difference = _compare_replay(made, replayed)
    for completion in (0, len(lengths) - 1):
        alone = serving.generate_alone(_pick(prompts, completion), limit)
        serving.reset_cache()
        difference = difference or _compare_alone(made, alone, completion)
    if difference is None:
        _require_equal_cache(made, cached)
        return
    layer = _find_layer(serving, prompts, made, difference, limit)
    raise OperatorError(
        "not_exact",
        f"vLLM does not compute equal bits on this machine: token {difference.token} of a completion after a prompt of "
        f"{lengths[difference.completion]} tokens differs between a batch and its {difference.what}, first in {layer}",
        fix="Use another device, model or attention backend, or the calibrated mode",
    )


def _require_equal_cache(made: Arrays, cached: Arrays) -> None:
    """Raise OperatorError("not_exact") if prompts from the prefix cache lead to other bits."""
    if not all(np.array_equal(made[name], cached[name]) for name in _VALUES):
        raise OperatorError(
            "not_exact",
            "vLLM does not compute equal bits on this machine: completions differ if their prompts are in the prefix "
            "cache",
            fix="Set vllm.enable_prefix_caching = false",
        )


def _choose_lengths(serving: Provable, length: int) -> tuple[Longs, int]:
    """Return the lengths of the prompts, the longest first, and the number of tokens to generate."""
    count, longest = min(PROVED, serving.max_batch), min(length, serving.longest)
    limit = min(WINDOW, longest - 1)
    lengths = np.linspace(min(USUAL_LENGTH, longest - limit), 1, count).astype(np.int64)
    lengths[0] = longest - limit
    return lengths, limit


def _build_prompts(serving: Provable, lengths: Longs) -> Arrays:
    tokens = np.random.default_rng(0).integers(0, serving.vocabulary, int(lengths.sum()))
    return {"prompts": tokens, "prompt_lengths": lengths, "seeds": np.arange(len(lengths))}


def _pick(prompts: Arrays, completion: int) -> Arrays:
    """Return the prompt and the seed of one completion."""
    ends = np.cumsum(prompts["prompt_lengths"])
    length = prompts["prompt_lengths"][completion]
    span = slice(completion, completion + 1)
    return {
        "prompts": prompts["prompts"][ends[completion] - length : ends[completion]],
        "prompt_lengths": prompts["prompt_lengths"][span],
        "seeds": prompts["seeds"][span],
    }


def _compare_replay(made: Arrays, replayed: Arrays) -> _Difference | None:
    is_equal = all(np.array_equal(made[name], replayed[name]) for name in _VALUES if name != "tokens")
    if is_equal and not replayed["margins"].any():
        return None
    differing = np.flatnonzero((made["logprobs"] != replayed["logprobs"]) | (replayed["margins"] != 0))
    token = int(differing[0]) if len(differing) else 0  # otherwise only a proof differs
    completion = int(np.searchsorted(np.cumsum(made["lengths"]), token, side="right"))
    return _Difference("replay", completion, token - int(made["lengths"][:completion].sum()))


def _compare_alone(made: Arrays, alone: Arrays, completion: int) -> _Difference | None:
    """Compare a completion that was generated alone with the first or the last one of a batch."""

    def cut(name: str) -> NDArray[np.generic]:
        return made[name][: len(alone[name])] if completion == 0 else made[name][-len(alone[name]) :]

    if all(np.array_equal(cut(name), alone[name]) for name in _VALUES):
        return None
    differing = np.flatnonzero((cut("logprobs") != alone["logprobs"]) | (cut("tokens") != alone["tokens"]))
    return _Difference("computation alone", completion, int(differing[0]) if len(differing) else 0)


def _find_layer(serving: Provable, prompts: Arrays, made: Arrays, difference: _Difference, limit: int) -> str:
    """Compute the differing token both ways once more, and return the first layer with another result."""
    completion = difference.completion
    position = int(prompts["prompt_lengths"][completion]) - 1 + difference.token
    in_batch = _trace(serving, serving.next_key + completion, position, lambda: serving.generate_alone(prompts, limit))
    if difference.what == "replay":
        again = _trace(serving, completion, position, lambda: serving.replay_alone(prompts, made))
    else:
        one = _pick(prompts, completion)
        again = _trace(serving, serving.next_key, position, lambda: serving.generate_alone(one, limit))
    if not in_batch or in_batch.keys() != again.keys():
        return "an unknown layer"
    different = (name for name, digest in in_batch.items() if again[name] != digest)
    return next((f"the layer {name}" for name in different), "the final norm, the head or the sampler")


def _trace(serving: Provable, key: int, position: int, compute: Callable[[], Arrays]) -> Mapping[str, str]:
    serving.start_trace(key, position)
    compute()
    serving.reset_cache()
    return serving.stop_trace()
