"""The seeded sampler in torch operations, for logits on any device: the reference of `triton_sampler`.

It is also what samples on a device where Triton does not run. All noise is computed, so it is about a hundred times
slower on a GPU. Tokens and margins equal those of the compiled sampler for CPUs in every bit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.sampling.noise_kernels import (
    FRACTION_BITS,
    LG1,
    LG2,
    LG3,
    LG4,
    LG5,
    LG6,
    LG7,
    LN2_HIGH,
    LN2_LOW,
    ONE_BITS,
    ROOT_HALF_BITS,
)
from covey.sampling.philox import LOW, MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1

_TOGETHER = 1 << 23
"""Maximum number of words that are computed at once. About ten int64 values per word exist at a time, in all 670 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What a sampler found for each row of logits."""

    tokens: Tensor
    """Token with the best score, int64[n]."""
    margins: Tensor
    """Difference of the best and the claimed score, float32[n]. Without claims it has no meaning."""
    logprobs: Tensor
    """Log-probability of the claimed token under softmax(logits), or else of the best token, float32[n]."""


def race(
    logits: Tensor, seeds: Tensor, positions: Tensor, temperature: float, *, claims: Tensor | None = None
) -> Scores:
    """Sample a token for each row, or score the claimed tokens. Nothing waits for the device.

    `logits` is float32 or bfloat16 [n, V]. `seeds` and `positions` are int64[n] on the same device: a seed has the bits
    of a uint64, and a position is from 0 to 2**32 - 1. A `temperature` of 0 adds no noise. `claims` is int64[n]. A
    claim that is not from 0 to V - 1 has a margin and a log-probability of NaN.
    """
    scores = logits.float()
    if temperature != 0:
        # On a GPU torch multiplies by the reciprocal of a Python number, which is not always the quotient.
        divisor = torch.full((), temperature, dtype=torch.float32, device=logits.device)
        scores = scores / divisor + compute_gumbel(seeds, positions, logits.shape[1])
    tokens, best = scores.argmax(dim=-1), scores.amax(dim=-1)
    chosen = tokens if claims is None else claims
    is_token = (chosen >= 0) & (chosen < logits.shape[1])
    safe = chosen.where(is_token, 0)
    margins = (best - scores.gather(1, safe[:, None])[:, 0]).where(is_token, torch.nan)
    return Scores(tokens, margins, compute_logprobs(logits, safe).where(is_token, torch.nan))


def compute_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return float32[n]: log p of each token in `tokens`, int64[n], under softmax of its row of `logits`, [n, V]."""
    return logits.log_softmax(dim=-1, dtype=torch.float32).gather(1, tokens[:, None])[:, 0]


def compute_gumbel(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Return the noise of `noise.gumbel`, float32[n, vocabulary], on the device of the seeds.

    `seeds` and `positions` are those of `race`.
    """
    out = torch.empty(len(seeds), vocabulary, dtype=torch.float32, device=seeds.device)
    rows = max(1, _TOGETHER // vocabulary)
    for start in range(0, len(seeds), rows):
        batch = slice(start, start + rows)
        out[batch] = compute_noise(compute_words(seeds[batch], positions[batch], vocabulary))
    return out


def compute_noise(words: Tensor) -> Tensor:
    """Return the noise -log(-log(u)) with u = (word + 0.5) / 2**32, float32 in the shape of `words`, which is int64."""
    uniform = (words.to(torch.float64) + 0.5) * 2.0**-32
    return (-_log(-_log(uniform))).to(torch.float32)


def compute_words(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Return the words of `noise.philox_words`, int64[n, vocabulary], each from 0 to 2**32 - 1."""
    n, blocks = len(seeds), (vocabulary + 3) // 4
    k0, k1 = (seeds & LOW)[:, None], ((seeds >> 32) & LOW)[:, None]
    c0 = torch.arange(blocks, device=seeds.device).expand(n, blocks)
    c1 = positions[:, None].expand(n, blocks)
    c2 = c3 = torch.zeros_like(c0)
    for _ in range(ROUNDS):
        high_0, low_0 = _multiply(c0, MULTIPLIER_0)
        high_1, low_1 = _multiply(c2, MULTIPLIER_1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + WEYL_0) & LOW, (k1 + WEYL_1) & LOW
    return torch.stack([c0, c1, c2, c3], dim=-1).reshape(n, 4 * blocks)[:, :vocabulary]


def _multiply(words: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """Return the high and low 32 bits of a product of two 32-bit words.

    It is computed from 16-bit halves, because the product does not fit in int64.
    """
    upper, lower = (words >> 16) * multiplier, (words & 0xFFFF) * multiplier
    return (upper + (lower >> 16)) >> 16, (((upper & 0xFFFF) << 16) + lower) & LOW


def _log(x: Tensor) -> Tensor:
    """Return the logarithm of `noise_kernels._log`, operation by operation. `torch.log` differs for some words."""
    bits = x.view(torch.int64) + (ONE_BITS - ROOT_HALF_BITS)
    k = ((bits >> 52) - 1023).to(torch.float64)
    f = ((bits & FRACTION_BITS) + ROOT_HALF_BITS).view(torch.float64) - 1.0
    half = 0.5 * f * f
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even, odd = w * (LG2 + w * (LG4 + w * LG6)), z * (LG1 + w * (LG3 + w * (LG5 + w * LG7)))
    return s * (half + (odd + even)) + k * LN2_LOW - half + f + k * LN2_HIGH
