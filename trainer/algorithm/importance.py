"""Correction for the policy that sampled: weights and masks of tokens, as one pure function of log-probabilities.

Policies differ because rollouts are stale and because an inference engine computes other numbers than the trainer. All
comparisons are in log space or between probabilities, so that no infinite ratio is multiplied by 0. Values of a whole
completion are sums over the tokens of its segment. Packing never divides a completion over two micro-batches.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.algorithm.loss_settings import LossSettings

LOG_RATIO_LIMIT = 20.0
"""Maximum log-ratio before exponentiation. e^20 exceeds every bound of the objective.

An exponential that overflows would have a gradient of 0 x Inf, which is NaN.
"""
FAR = 1e4
"""Log-ratio of a token whose probability is 0 under one of two policies."""
PROBABILITY_LIMIT = 1e-6
"""Distance of probabilities from 0 and 1 in binary divergences, as in verl, AReaL and prime-rl."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Importance:
    """Correction of each token, without gradient, [n] each."""

    weights: Tensor
    """Factor of the token's policy gradient. 0 if `importance_sampling_mode` masks the token."""
    kept: Tensor
    """Whether the token has a policy gradient, bool. False for all tokens that are masked."""
    truncated: Tensor
    """Whether a bound reduced or raised the weight, bool."""


def compute_ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """Return p / p_old per token [n], from both log-probabilities. Two probabilities of 0 have a ratio of 1."""
    return torch.exp(limit_log_ratio(logprobs - old, LOG_RATIO_LIMIT))


def compute_sequence_ratio(logprobs: Tensor, old: Tensor, segments: Tensor) -> Tensor:
    """Return the geometric mean of p / p_old over each token's completion, [n] (GSPO, arXiv 2507.18071, formula 7)."""
    mean = average_segments(limit_log_ratio(logprobs.double() - old.double(), FAR), segments)
    return torch.exp(limit_log_ratio(mean, LOG_RATIO_LIMIT)).to(logprobs.dtype)


def sum_segments(values: Tensor, segments: Tensor) -> Tensor:
    """Return for each token the sum of `values` over its completion, float64 [n]. `segments` count from 0."""
    sums = torch.zeros(len(values), dtype=torch.float64, device=values.device)
    return sums.index_add(0, segments, values.double()).index_select(0, segments)


def average_segments(values: Tensor, segments: Tensor) -> Tensor:
    """Return for each token the mean of `values` over its completion, float64 [n]."""
    return sum_segments(values, segments) / sum_segments(torch.ones_like(values), segments)


@torch.no_grad()
def compute_importance(
    *,
    current: Tensor,
    start: Tensor,
    sampler: Tensor,
    advantages: Tensor,
    segments: Tensor,
    settings: LossSettings,
) -> Importance:
    """Return the weights and masks of `importance_sampling_mode` and `mask`.

    `current`, `start` and `sampler` are log p [n] under the policy in training, the policy at the start of the step and
    the policy that sampled. Tokens with equal numbers in `segments` [n] belong to one completion.

    Weights compare `start` with `sampler`. Masks do so, too, if the mode is not none (IcePop, verl, AReaL). If it is,
    they compare `current` with `sampler`, as does OPSM always (prime-rl, TRL).
    """
    weights, truncated = _weigh(start, sampler, segments, settings)
    compared = start if settings.is_decoupled and settings.mask != "opsm" else current
    kept = _find_kept(compared, sampler, advantages, segments, settings) & (weights > 0)
    return Importance(weights=weights, kept=kept, truncated=truncated)


def _weigh(start: Tensor, sampler: Tensor, segments: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """Return the weight of each token, and whether it was truncated.

    token_truncate: min(max(r, low), high) (AReaL, arXiv 2505.24298, section 5.2; TIS, https://fengyao.notion.site/
    off-policy-rl). token_mask: r if it is within the bounds, else 0 (MIS, https://richardli.xyz/rl-collapse); icepop is
    the same with both bounds (arXiv 2510.18855, section 3.3). sequence_*: the same with r as the product over the
    completion. The names and bounds are those of TRL 1.16.
    """
    mode = settings.importance_sampling_mode
    high, low = settings.importance_sampling_clip_max, settings.importance_sampling_clip_min
    if mode == "none":
        return torch.ones_like(start), torch.zeros_like(start, dtype=torch.bool)
    log_ratio = limit_log_ratio(start - sampler, LOG_RATIO_LIMIT)
    if mode.startswith("sequence"):
        total = sum_segments(limit_log_ratio(start.double() - sampler.double(), FAR), segments)
        log_ratio = limit_log_ratio(total, LOG_RATIO_LIMIT).to(start.dtype)
    if mode.endswith("truncate"):
        ratio = torch.exp(log_ratio)
        weights = ratio.clamp(min=low, max=high)
        return weights, ratio != weights
    is_outside = log_ratio > math.log(high)
    if low is not None:
        is_outside |= log_ratio < math.log(low)
    return torch.exp(log_ratio.masked_fill(is_outside, -math.inf)), torch.zeros_like(is_outside)


def _find_kept(
    trainer: Tensor, sampler: Tensor, advantages: Tensor, segments: Tensor, settings: LossSettings
) -> Tensor:
    """Return for each token whether `mask` keeps it, bool [n].

    With p and q the probabilities under trainer and sampler, a the threshold, and means over the completion:

    - ipo: |p - q| <= a (prime-rl `ipo_loss_fn`).
    - dppo: p - q <= a if A > 0, q - p <= low otherwise (Binary TV of arXiv 2602.04879; prime-rl `default_loss_fn`).
    - kpop: KL(p || q) <= a and KL(q || p) <= a, between "this token" and "any other" (https://ringtech.notion.site/kpop;
      AReaL and verl `binary_kl`).
    - opsm: A >= 0 or mean(log q - log p) <= a (DeepSeek-V3.2, arXiv 2512.02556, formula 9; TRL).
    - geometric: low <= exp(mean(log p - log q)) <= a (https://richardli.xyz/post/rl-collapse-part3; verl
      `seq_mean_k1`).
    - k3: mean(p / q - log(p / q) - 1) <= a (verl `seq_mean_k3`).
    """
    if settings.mask == "none" or settings.mask_threshold is None:
        return torch.ones_like(trainer, dtype=torch.bool)
    most, least = settings.mask_threshold, settings.mask_threshold_low
    trainer, sampler = trainer.double(), sampler.double()
    p, q = trainer.exp(), sampler.exp()
    log_ratio = limit_log_ratio(trainer - sampler, FAR)
    if settings.mask == "ipo":
        return (p - q).abs() <= most
    if settings.mask == "dppo":
        return torch.where(advantages > 0, p - q <= most, q - p <= (most if least is None else least))
    if settings.mask == "kpop":
        return (compute_binary_kl(p, q) <= most) & (compute_binary_kl(q, p) <= most)
    if settings.mask == "opsm":
        return (advantages >= 0) | (average_segments(-log_ratio, segments) <= most)
    if settings.mask == "geometric":
        mean = average_segments(log_ratio, segments)
        return (mean <= math.log(most)) & (mean >= (-math.log(most) if least is None else math.log(least)))
    log_ratio = limit_log_ratio(log_ratio, LOG_RATIO_LIMIT)
    return average_segments(log_ratio.exp() - log_ratio - 1, segments) <= most


def compute_binary_kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) per token [n] between a token and all others: p log(p / q) + (1 - p) log((1 - p) / (1 - q))."""
    p, q = (each.clamp(PROBABILITY_LIMIT, 1 - PROBABILITY_LIMIT) for each in (p, q))
    return p * torch.log(p / q) + (1 - p) * torch.log((1 - p) / (1 - q))


def limit_log_ratio(log_ratio: Tensor, bound: float) -> Tensor:
    """Return log-ratios within the bounds. A NaN, which two probabilities of 0 have, becomes 0."""
    return log_ratio.nan_to_num(nan=0.0, posinf=bound, neginf=-bound).clamp(-bound, bound)
