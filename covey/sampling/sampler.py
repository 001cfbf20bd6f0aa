"""The seeded sampler: one right token for each slot and position, the same function for worker and validator.

The engines call `sample` while generating and `score` while replaying.  Gumbel-max: the argmax of logits / T plus
Gumbel noise is a sample of softmax(logits / T).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from covey.sampling.noise_kernels import compile_all
from covey.sampling.torch_sampler import gumbel_tensor

MIN_TEMPERATURE = 0.01
"""Below it logits / T leaves float32, and every margin would be no number."""

Seeds = NDArray[np.uint64]
Positions = NDArray[np.uint32]


def sample(logits: torch.Tensor, seeds: Seeds, positions: Positions, temperature: float) -> torch.Tensor:
    """int64[n]: the token of each row, ties to the lower index; the first NaN where there is one.

    `logits`: float32[n, V].  `seeds`: uint64[n].  `positions`: uint32[n], 0 at the first completion token.
    `temperature` 0 is the limit: plain argmax without noise.
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
    """float32[n], at least 0: how much each claimed token lost to the argmax by, 0 where it won.

    `tokens`: int64[n], each below V (or ValueError); the rest as in `sample`.  The unit is that of logits / T.
    NaN where the logits are NaN: compare with "not margin <= limit".
    """
    _require(logits, seeds, positions, temperature)
    if tokens.shape != logits.shape[:1] or bool(((tokens < 0) | (tokens >= logits.shape[1])).any()):
        raise ValueError(f"tokens are one a row, each from 0 to {logits.shape[1] - 1}")
    if temperature == 0 or logits.device.type != "cpu":
        scores = logits if temperature == 0 else _compute_scores(logits, seeds, positions, temperature)
        return scores.amax(dim=-1) - scores.gather(1, tokens[:, None])[:, 0]
    _, best = _race(logits, seeds, positions, temperature)
    claimed = np.empty(len(best), np.float32)
    numbers = np.ascontiguousarray(tokens.numpy(), np.int64)
    compile_all().score_tokens(*_unpack(logits, temperature, seeds, positions), numbers, claimed)
    with np.errstate(invalid="ignore"):  # infinite less infinite is no number, as in torch
        return torch.from_numpy(best - claimed)


def load_kernels(device: str | torch.device) -> None:
    """What sampling on a CPU needs once a process: half a second, several the first time on a machine, which compiles;
    no request should wait for it.  Nothing on other devices."""
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
        raise ValueError(f"temperature {temperature} is neither 0 nor a number of at least {MIN_TEMPERATURE}")
    if logits.ndim != 2 or logits.shape[1] == 0 or not len(logits) == len(seeds) == len(positions):
        raise ValueError(f"{len(seeds)} seeds and {len(positions)} positions for logits {tuple(logits.shape)}")
