"""The seeded sampler. It determines one valid token for each slot and position, for worker and validator alike.

Engines call `sample` to generate and `score` to replay. By the Gumbel-max trick, the argmax of logits / T plus Gumbel
noise is a sample of softmax(logits / T).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from covey.sampling.noise_kernels import compile_all
from covey.sampling.torch_sampler import gumbel_tensor

MIN_TEMPERATURE = 0.01
"""Minimum temperature other than 0. Below it logits / T can overflow float32, and every margin would be NaN."""

Seeds = NDArray[np.uint64]
Positions = NDArray[np.uint32]


def sample(logits: torch.Tensor, seeds: Seeds, positions: Positions, temperature: float) -> torch.Tensor:
    """Return the sampled token of each row, int64[n]. Ties go to the lower index, and the first NaN wins.

    `logits` is float32[n, V], `seeds` is uint64[n], and `positions` is uint32[n], 0 at the first completion token.
    A `temperature` of 0 selects the argmax without noise. Raises ValueError if the numbers of rows differ or the
    temperature is out of range.
    """
    _require(logits, seeds, positions, temperature)
    if temperature == 0:
        return logits.argmax(dim=-1)
    if logits.device.type != "cpu":
        return _compute_scores(logits, seeds, positions, temperature).argmax(dim=-1)
    return torch.from_numpy(_race(logits, seeds, positions, temperature)[0])


def score(
    logits: torch.Tensor, tokens: torch.Tensor, seeds: Seeds, positions: Positions, temperature: float
) -> torch.Tensor:
    """Return the margin by which each claimed token lost to the argmax, float32[n]. 0 if it is the argmax.

    `tokens` is int64[n]. Raises ValueError if a token is not below V. The other arguments are those of `sample`.
    Margins have the unit of logits / T. A margin is NaN if the logits are NaN, so test "not margin <= limit".
    """
    _require(logits, seeds, positions, temperature)
    if tokens.shape != logits.shape[:1] or bool(((tokens < 0) | (tokens >= logits.shape[1])).any()):
        raise ValueError(f"the tokens are not one per row, or not between 0 and {logits.shape[1] - 1}")
    if temperature == 0 or logits.device.type != "cpu":
        scores = logits if temperature == 0 else _compute_scores(logits, seeds, positions, temperature)
        return scores.amax(dim=-1) - scores.gather(1, tokens[:, None])[:, 0]
    _, best = _race(logits, seeds, positions, temperature)
    claimed_scores = np.empty(len(best), np.float32)
    claimed_tokens = np.ascontiguousarray(tokens.numpy(), np.int64)
    compile_all().score_tokens(*_unpack(logits, temperature, seeds, positions), claimed_tokens, claimed_scores)
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, as in torch
        return torch.from_numpy(best - claimed_scores)


def load_kernels(device: str | torch.device) -> None:
    """Load the kernels for sampling on a CPU, once per process. Does nothing on other devices.

    The first call on a machine compiles them, which takes several seconds. Call it before the first request.
    """
    if torch.device(device).type == "cpu":
        score(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), np.zeros(1, np.uint64), np.zeros(1, np.uint32), 1.0)


def _race(
    logits: torch.Tensor, seeds: Seeds, positions: Positions, temperature: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    winners, best = np.empty(len(logits), np.int64), np.empty(len(logits), np.float32)
    compile_all().race(*_unpack(logits, temperature, seeds, positions), winners, best)
    return winners, best


def _unpack(
    logits: torch.Tensor, temperature: float, seeds: Seeds, positions: Positions
) -> tuple[NDArray[np.float32], np.float32, Seeds, Positions]:
    rows = np.ascontiguousarray(logits.detach().to(torch.float32).numpy())
    return (
        rows,
        np.float32(temperature),
        np.ascontiguousarray(seeds, np.uint64),
        np.ascontiguousarray(positions, np.uint32),
    )


def _compute_scores(logits: torch.Tensor, seeds: Seeds, positions: Positions, temperature: float) -> torch.Tensor:
    return logits / temperature + gumbel_tensor(seeds, positions, logits.shape[1], logits.device)


def _require(logits: torch.Tensor, seeds: Seeds, positions: Positions, temperature: float) -> None:
    if temperature != 0 and not MIN_TEMPERATURE <= temperature < float("inf"):
        raise ValueError(
            f"temperature is {temperature}, but must be 0 or a finite number of at least {MIN_TEMPERATURE}"
        )
    if logits.ndim != 2 or logits.shape[1] == 0 or not len(logits) == len(seeds) == len(positions):
        raise ValueError(
            f"{len(seeds)} seeds and {len(positions)} positions do not match logits of shape {tuple(logits.shape)}"
        )
