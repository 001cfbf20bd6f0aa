"""The mathematics of the objective, as pure functions of tensors.

There are no value functions and no importance weights of whole sequences. Sums run over tokens, each with its weight.
The loss is therefore the same for padded, packed, shuffled and micro-batched input.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["decoupled", "two_sided"]
KlEstimator = Literal["k3_corrected", "k3"]

SPREAD_EPSILON = 1e-6
"""Added to a group's standard deviation, so that the divisor is not 0."""
LOG_RATIO_LIMIT = 20.0
"""Maximum log-ratio before exponentiation. e^20 exceeds every bound of the objective.

An exponential that overflows would have a gradient of 0 x Inf, which is NaN.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """Settings of the loss.

    Example: Objective(kind="decoupled", epsilon=0.2, delta=4.0, cap=5.0, kl=0.0, entropy=0.0).
    """

    kind: Kind
    epsilon: float
    """Half width of the interval around 1 to which ratios are clipped."""
    delta: float
    """Upper bound of the ratio if the advantage is negative."""
    cap: float
    """Maximum pi_prox / pi_behave of the decoupled objective."""
    kl: float
    """Weight of the KL divergence from the reference. 0 disables it."""
    entropy: float
    """Weight of the entropy bonus."""
    kl_estimator: KlEstimator = "k3_corrected"
    """Estimator of the KL divergence in `compute_loss`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSums:
    """Sums over tokens. All except the maximum can be added over micro-batches and ranks."""

    loss: float
    tokens: float
    clipped: float
    """Number of tokens whose gradient was removed by clipping or reduced by the cap."""
    ratio: float
    """Sum of the probability ratios between the policy and the policy that sampled."""
    entropy: float
    kl: float
    outside_clip: float
    """Number of tokens whose ratio to the policy that sampled is outside 1 - epsilon to 1 + epsilon, clipped or not."""
    mismatch_kl: float
    """Sum of the k3 estimates of KL(policy that sampled || policy), in nats."""
    mismatch_kl_max: float
    """Maximum k3 estimate over all tokens, in nats. This is not a sum."""


def compute_advantages(rewards: Tensor, kind: Literal["grpo", "dr_grpo"]) -> Tensor:
    """Return the advantages of rewards [groups, siblings], in the same shape.

    `grpo`: (r - mean) / (std + 1e-6), with the standard deviation of the population (DeepSeekMath, arXiv 2402.03300,
    section 4.1.2). `dr_grpo`: r - mean (arXiv 2503.20783, section 3.2). A group of equal rewards gets exactly zero.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    scaled = centred / (rewards.std(dim=1, keepdim=True, correction=0) + SPREAD_EPSILON)
    is_equal = rewards.amax(dim=1, keepdim=True) == rewards.amin(dim=1, keepdim=True)
    return torch.where(is_equal, 0.0, scaled if kind == "grpo" else centred)


def compute_weights(lengths: Tensor, kind: Literal["tokens", "sequence", "constant"], *, constant: int) -> Tensor:
    """Return the weight of each token of a sample, float64 [samples].

    `lengths` are the completion lengths [samples] of a whole update.

    `tokens`: 1 / all tokens of the update (DAPO, arXiv 2503.14476, formula 8). `sequence`: 1 / (samples x own length)
    (the paper, section 3.4, as written). `constant`: 1 / (samples x constant), where `constant` is the length limit
    (dr_grpo).
    """
    lengths = lengths.double()
    if kind == "tokens":
        return torch.ones_like(lengths) / lengths.sum()
    if kind == "sequence":
        return 1 / (len(lengths) * lengths)
    return torch.full_like(lengths, 1 / (len(lengths) * constant))


def compute_ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """Return p / p_old per token [n], computed from both log-probabilities."""
    return torch.exp((logprobs - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def compute_objective(ratio: Tensor, advantages: Tensor, objective: Objective) -> Tensor:
    """Return min(min(r, delta) A, clip(r, 1 - eps, 1 + eps) A) per token [n] (the paper, section 3.4, formula 2)."""
    unclipped = ratio.clamp(max=objective.delta) * advantages
    clipped = ratio.clamp(1 - objective.epsilon, 1 + objective.epsilon) * advantages
    return torch.minimum(unclipped, clipped)


def compute_importance(proximal: Tensor, behaviour: Tensor, cap: float) -> Tensor:
    """Return min(pi_prox / pi_behave, cap) per token [n], without gradient.

    The decoupled objective multiplies the clipped objective of pi_theta / pi_prox by it (AReaL, arXiv 2505.24298,
    section 5.2; first in arXiv 2110.00641). The cap bounds the variance at the cost of some bias (truncated importance
    sampling, Ionides 2008).
    """
    return compute_ratio(proximal.detach(), behaviour).clamp(max=cap)


def is_clipped(ratio: Tensor, advantages: Tensor, objective: Objective) -> Tensor:
    """Return for each token whether the objective is independent of its ratio, bool [n]."""
    too_high = (advantages > 0) & (ratio > 1 + objective.epsilon)
    too_low = (advantages < 0) & ((ratio < 1 - objective.epsilon) | (ratio > objective.delta))
    return too_high | too_low


def compute_kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return exp(d) - d - 1 with d = log p_ref - log p, per token [n] (Schulman's k3).

    It is at least 0 and unbiased for KL(p || p_ref) on samples of p. The gradient flows through `logprobs` where d is
    below a bound that keeps exp(d) finite.

    Its gradient is an unbiased estimate of the gradient of KL(p_ref || p), not of KL(p || p_ref), because it ignores
    that p determines the samples. Multiplied by a differentiable p / p_old, as in `k3_corrected`, value and gradient
    are unbiased for KL(p || p_ref) on samples of p_old (DeepSeek-V3.2, arXiv 2512.02556, section 3.1).
    """
    d = (reference - logprobs).clamp(max=LOG_RATIO_LIMIT)
    return torch.exp(d) - d - 1


def compute_loss(
    *,
    logprobs: Tensor,
    old: Tensor | None,
    proximal: Tensor | None,
    advantages: Tensor,
    weights: Tensor,
    entropy: Tensor,
    reference: Tensor | None,
    objective: Objective,
) -> tuple[Tensor, TokenSums]:
    """Return the loss to minimise, a sum weighted by `weights`, and statistics without gradient.

    All tensors are per token [n]. `old` is log p under the policy that sampled. `proximal` is log p under the policy at
    the start of the step, for the decoupled objective. Either is None if that policy also produced `logprobs`, as in
    the first update of a step.

    Raises ValueError if the KL divergence is enabled and `reference` is None.
    """
    if objective.kl > 0 and reference is None:
        raise ValueError("the KL divergence has a weight, but the samples have no reference log-probabilities")
    old = logprobs.detach() if old is None else old
    ratio = correction = drift = compute_ratio(logprobs, old)
    is_capped = torch.zeros_like(ratio, dtype=torch.bool)
    if objective.kind == "decoupled":
        proximal = logprobs.detach() if proximal is None else proximal
        ratio = compute_ratio(logprobs, proximal)
        is_capped = (compute_ratio(proximal.detach(), old) > objective.cap) & (advantages != 0)
        importance = compute_importance(proximal, old, objective.cap)
        advantages, correction = advantages * importance, importance * ratio
    gain = compute_objective(ratio, advantages, objective)
    kl = torch.zeros_like(gain) if reference is None else compute_kl(logprobs, reference)
    if objective.kl_estimator == "k3_corrected":
        kl = correction * kl
    if objective.kl > 0:
        gain = gain - objective.kl * kl
    if objective.entropy > 0:
        gain = gain + objective.entropy * entropy
    loss = -(weights * gain).sum()
    with torch.no_grad():
        mismatch = compute_kl(old.double(), logprobs.double())  # in float32 values near 0 would be rounding noise
        statistics = {
            "loss": loss,
            "clipped": is_clipped(ratio, advantages, objective) | is_capped,
            "ratio": drift,
            "entropy": entropy,
            "kl": kl,
            "outside_clip": (drift - 1).abs() > objective.epsilon,
            "mismatch_kl": mismatch,
        }
        sums = [each.double().sum() for each in statistics.values()]
        highest = mismatch.amax() if len(mismatch) else mismatch.sum()
        values = torch.stack([*sums, highest]).tolist()  # all at once, to synchronise with a GPU only once
    names = (*statistics, "mismatch_kl_max")
    return loss, TokenSums(tokens=len(ratio), **dict(zip(names, values, strict=True)))
