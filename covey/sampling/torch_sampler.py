"""The noise of the seeded sampler in torch, for logits on any device, such as a GPU.

Words equal those of `noise.philox_words`. Gumbel values may differ from `noise.gumbel` in the last place.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from covey.sampling.philox import LOW, MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1

_TOGETHER = 1 << 23
"""Maximum number of words that are computed at once. About ten int64 values per word exist at a time, in all 670 MB."""


def philox_words_tensor(
    seeds: NDArray[np.uint64], positions: NDArray[np.uint32], vocabulary: int, device: torch.device | str
) -> torch.Tensor:
    """Return the words of `noise.philox_words`, int64[n, vocabulary], each below 2**32."""
    n, blocks = len(seeds), (vocabulary + 3) // 4
    halves = np.stack([seeds & np.uint64(LOW), seeds >> np.uint64(32), positions.astype(np.uint64)]).astype(np.int64)
    k0, k1, position = torch.from_numpy(halves).to(device)[:, :, None]
    c0 = torch.arange(blocks, device=device).expand(n, blocks)
    c1 = position.expand(n, blocks)
    c2 = c3 = torch.zeros_like(c0)
    for _ in range(ROUNDS):
        high_0, low_0 = _multiply(c0, MULTIPLIER_0)
        high_1, low_1 = _multiply(c2, MULTIPLIER_1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + WEYL_0) & LOW, (k1 + WEYL_1) & LOW
    return torch.stack([c0, c1, c2, c3], dim=-1).reshape(n, 4 * blocks)[:, :vocabulary]


def gumbel_tensor(
    seeds: NDArray[np.uint64], positions: NDArray[np.uint32], vocabulary: int, device: torch.device | str
) -> torch.Tensor:
    """Return the noise of `noise.gumbel`, float32[n, vocabulary], computed in float64 and rounded once."""
    out = torch.empty(len(seeds), vocabulary, dtype=torch.float32, device=device)
    rows = max(1, _TOGETHER // vocabulary)
    for start in range(0, len(seeds), rows):
        batch = slice(start, start + rows)
        words = philox_words_tensor(seeds[batch], positions[batch], vocabulary, device)
        uniform = (words.to(torch.float64) + 0.5) * 2.0**-32
        out[batch] = uniform.log_().neg_().log_().neg_()
    return out


def _multiply(words: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and low 32 bits of a product of two 32-bit words.

    It is computed from 16-bit halves, because the product does not fit in int64.
    """
    upper, lower = (words >> 16) * multiplier, (words & 0xFFFF) * multiplier
    return (upper + (lower >> 16)) >> 16, (((upper & 0xFFFF) << 16) + lower) & LOW
