"""The seeded sampler. It determines one valid token for each slot and position, for worker and validator alike.

Engines call `sample` to generate and `score` to replay. By the Gumbel-max trick, the argmax of logits / T plus Gumbel
noise is a sample of softmax(logits / T). Tokens and margins are equal in every bit on every device. Log-probabilities
are those of softmax(logits), whatever the temperature, and can differ in the last places between devices.
"""

import functools
import os
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.runtime.log import get_logger
from covey.sampling import torch_sampler
from covey.sampling.noise_kernels import compile_all
from covey.sampling.torch_sampler import Scores, compute_logprobs

MIN_TEMPERATURE = 0.01
"""Minimum temperature other than 0. Below it logits / T can overflow float32, and every margin would be NaN."""

Seeds = NDArray[np.uint64] | Tensor
"""Seed of each row: uint64[n], or int64[n] with the same bits on the device of the logits."""
Positions = NDArray[np.uint32] | Tensor
"""Position of each row, 0 at the first completion token: uint32[n], or int64[n] on the device of the logits."""


class Sampled(NamedTuple):
    """The sampled tokens."""

    tokens: Tensor
    """Token of each row, int64[n]."""
    logprobs: Tensor
    """Log-probability of each token, float32[n]."""


class Scored(NamedTuple):
    """How close claimed tokens are to the sampled ones."""

    margins: Tensor
    """Difference by which each claimed token lost to the argmax, float32[n], in units of logits / T. 0 if it is the
    argmax. NaN if the logits are NaN, so test "not margin <= limit".
    """
    logprobs: Tensor
    """Log-probability of each claimed token, float32[n]."""


class _Race(Protocol):
    """The search for the best token: `torch_sampler.race` or an equal one."""

    def __call__(
        self, logits: Tensor, seeds: Tensor, positions: Tensor, temperature: float, *, claims: Tensor | None = None
    ) -> Scores: ...


def sample(logits: Tensor, seeds: Seeds, positions: Positions, temperature: float) -> Sampled:
    """Return the sampled token of each row. Ties go to the lower index, and the first NaN wins.

    `logits` is float32[n, V]. A `temperature` of 0 selects the argmax without noise. On a GPU the host waits for
    nothing. Raises ValueError if the numbers of rows differ or the temperature is out of range.
    """
    _require(logits, seeds, positions, temperature)
    race = _choose_race(logits.device, temperature)
    found = race(logits, _move(seeds, logits.device), _move(positions, logits.device), temperature)
    return Sampled(found.tokens, found.logprobs)


def score(logits: Tensor, tokens: Tensor, seeds: Seeds, positions: Positions, temperature: float) -> Scored:
    """Score the claimed `tokens`, int64[n]. The other arguments are those of `sample`.

    Raises ValueError if a token is not from 0 to V - 1. On a GPU its margin is NaN instead, because the host would have
    to wait for a check.
    """
    _require(logits, seeds, positions, temperature)
    is_checked = logits.device.type == "cpu"
    if tokens.shape != logits.shape[:1] or (is_checked and bool(((tokens < 0) | (tokens >= logits.shape[1])).any())):
        raise ValueError(f"the tokens are not one per row, or not between 0 and {logits.shape[1] - 1}")
    race = _choose_race(logits.device, temperature)
    found = race(logits, _move(seeds, logits.device), _move(positions, logits.device), temperature, claims=tokens)
    return Scored(found.margins, found.logprobs)


def load_kernels(device: str | torch.device, vocabulary: int = 1) -> None:
    """Load the sampler's kernels for float32 logits of a `vocabulary` on a device, once per process.

    The first call on a machine compiles them, which takes several seconds. Call it before the first request.
    """
    keys = np.zeros(1, np.uint64), np.zeros(1, np.uint32)
    logits = torch.zeros(1, vocabulary, device=device)
    sample(logits, *keys, 1.0)
    score(logits, torch.zeros(1, dtype=torch.int64, device=device), *keys, 1.0)


def _choose_race(device: torch.device, temperature: float) -> _Race:
    return torch_sampler.race if temperature == 0 else _load_race(device)


@functools.cache
def _load_race(device: torch.device) -> _Race:
    """Return the fastest sampler that runs on a device."""
    if device.type == "cpu":
        return _race_on_cpu
    try:
        from covey.sampling import triton_sampler
    except ImportError as error:
        return _fall_back(device, error)
    number = torch.zeros(1, dtype=torch.int64, device=device)
    try:
        triton_sampler.race(torch.zeros(1, 1, device=device), number, number, 1.0)
    except torch.OutOfMemoryError:
        raise
    except triton_sampler.ERRORS as error:
        return _fall_back(device, error)
    return triton_sampler.race


def _fall_back(device: torch.device, error: Exception) -> _Race:
    """Return the sampler in torch operations, with a warning.

    Its log-probabilities differ from the kernels' in the last place. In vLLM's batch-invariant mode, where other
    engines compare them, the error is raised instead.
    """
    if os.environ.get("VLLM_BATCH_INVARIANT") == "1":
        raise error
    get_logger().warning(
        "the sampler runs without Triton, which is about a hundred times slower", device=str(device), error=str(error)
    )
    return torch_sampler.race


def _race_on_cpu(
    logits: Tensor, seeds: Tensor, positions: Tensor, temperature: float, *, claims: Tensor | None = None
) -> Scores:
    """Do what `torch_sampler.race` does with the compiled search of `noise_kernels`."""
    rows = np.ascontiguousarray(logits.detach().to(torch.float32).numpy())
    keys = seeds.numpy().view(np.uint64), positions.numpy().astype(np.uint32)
    given, n = (rows, np.float32(temperature), *keys), len(rows)
    winners, best, scores = np.empty(n, np.int64), np.empty(n, np.float32), np.full(n, np.nan, np.float32)
    compile_all().race(*given, winners, best)
    tokens = torch.from_numpy(winners)
    chosen = tokens if claims is None else claims
    if claims is not None:
        compile_all().score_tokens(*given, np.ascontiguousarray(claims.numpy(), np.int64), scores)
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, as in torch
        margins = torch.from_numpy(best - scores)
    return Scores(tokens, margins, compute_logprobs(logits, chosen))


def _move(words: NDArray[np.uint64] | NDArray[np.uint32] | Tensor, device: torch.device) -> Tensor:
    """Return seeds or positions as int64[n] on a device."""
    if isinstance(words, Tensor):
        return words.contiguous()
    wide = np.ascontiguousarray(words, np.uint64).view(np.int64)
    return torch.from_numpy(wide).to(device, non_blocking=True)


def _require(logits: Tensor, seeds: Seeds, positions: Positions, temperature: float) -> None:
    if temperature != 0 and not MIN_TEMPERATURE <= temperature < float("inf"):
        raise ValueError(
            f"temperature is {temperature}, but must be 0 or a finite number of at least {MIN_TEMPERATURE}"
        )
    if logits.ndim != 2 or logits.shape[1] == 0 or not len(logits) == len(seeds) == len(positions):
        raise ValueError(
            f"{len(seeds)} seeds and {len(positions)} positions do not match logits of shape {tuple(logits.shape)}"
        )
    for each in (seeds, positions):
        if isinstance(each, Tensor) and (each.dtype, each.ndim, each.device) != (torch.int64, 1, logits.device):
            raise ValueError(f"seeds and positions are {each.dtype} on {each.device}, not int64[n] on {logits.device}")
