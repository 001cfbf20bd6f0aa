"""The seeded sampler: one right token for each slot and position, the same function for worker and validator.

The engines call `sample` while generating and `score` while replaying.  Gumbel-max: the argmax of logits / T plus
Gumbel noise is a sample of softmax(logits / T).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from covey.sampling.noise import gumbel

MIN_TEMPERATURE = 0.01
"""Below it logits / T leaves float32, and every margin would be no number."""


def sample(
    logits: torch.Tensor, seeds: NDArray[np.uint64], positions: NDArray[np.uint32], temperature: float
) -> torch.Tensor:
    """int64[n]: the token of each row, ties to the lower index.

    `logits`: float32[n, V].  `seeds`: uint64[n].  `positions`: uint32[n], 0 at the first completion token.
    `temperature` 0 is the limit: plain argmax without noise.
    """
    return _compute_scores(logits, seeds, positions, temperature).argmax(dim=-1)


def score(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    seeds: NDArray[np.uint64],
    positions: NDArray[np.uint32],
    temperature: float,
) -> torch.Tensor:
    """float32[n], at least 0: how much each claimed token lost to the argmax by, 0 where it won.

    `tokens`: int64[n], each below V (the caller checks); the rest as in `sample`.  The unit is that of logits / T.
    NaN where the logits are NaN: compare with "not margin <= limit".
    """
    scores = _compute_scores(logits, seeds, positions, temperature)
    return scores.amax(dim=-1) - scores.gather(1, tokens[:, None])[:, 0]


def _compute_scores(
    logits: torch.Tensor, seeds: NDArray[np.uint64], positions: NDArray[np.uint32], temperature: float
) -> torch.Tensor:
    if temperature == 0:
        return logits
    if not MIN_TEMPERATURE <= temperature < float("inf"):
        raise ValueError(f"temperature {temperature} is neither 0 nor a number of at least {MIN_TEMPERATURE}")
    return logits / temperature + torch.from_numpy(gumbel(seeds, positions, logits.shape[1])).to(logits.device)
