"""The mathematics of the objective, as pure functions of tensors.

There are no value functions. Sums run over tokens, each with its weight. The loss is therefore the same for padded,
packed, shuffled and micro-batched input. `LossSettings` selects the formulas, and docs/guides/choose-an-objective.md
says when to use which.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.algorithm.importance import (
    FAR,
    LOG_RATIO_LIMIT,
    Importance,
    compute_importance,
    compute_ratio,
    compute_sequence_ratio,
    limit_log_ratio,
    sum_segments,
)
from trainer.algorithm.loss_settings import LossSettings, Normaliser, Scale

SPREAD_EPSILON = 1e-6
"""Added to a group's standard deviation, so that the divisor is not 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossInputs:
    """What a custom loss computes the loss of each token from. Tensors have one entry per token, [n] each.

    A custom loss is a function of this class that returns the loss of each token, [n]. The trainer multiplies it by the
    tokens' weights and sums it. `beta` and other regularisers of the settings are added. Masked tokens are left out.
    """

    logprobs: Tensor
    """log p under the policy in training. Gradients flow through it only."""
    start: Tensor
    """log p under the policy at the start of the step."""
    sampler: Tensor
    """log p under the policy that sampled."""
    advantages: Tensor
    """Advantage of the token's completion."""
    importance: Tensor
    """Weight of `importance_sampling_mode`, without gradient. 1 if the mode is none."""
    kept: Tensor
    """Whether the token has a policy gradient, bool."""
    segments: Tensor
    """Number of the token's completion in this micro-batch, int64. Each completion is complete."""
    entropy: Tensor
    """Entropy of the policy in training, in nats."""
    reference: Tensor | None
    """log p under the policy of step 0. None unless `beta` is set."""


CustomLoss = Callable[[LossInputs], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSums:
    """Sums over tokens. All except the maximum can be added over micro-batches and ranks."""

    loss: float
    tokens: float
    weight: float
    """Sum of the tokens' weights."""
    kept_weight: float
    """Sum of the weights of the tokens in the denominator: without masked ones if `drops_masked` is set."""
    masked: float
    """Number of tokens without a policy gradient because of a mask."""
    clipped: float
    """Number of tokens whose gradient was removed by clipping or changed by a bound of the weight."""
    ratio: float
    """Sum of the probability ratios between the policy and the policy that sampled."""
    entropy: float
    kl: float
    outside_clip: float
    """Number of tokens whose ratio to the policy that sampled is outside the clip range, clipped or not."""
    mismatch_kl: float
    """Sum of the k3 estimates of KL(policy that sampled || policy), in nats."""
    mismatch_kl_max: float
    """Maximum k3 estimate over all tokens, in nats. This is not a sum."""


def compute_advantages(
    rewards: Tensor,
    scale: Scale,
    *,
    ddof: int = 0,
    epsilon: float = SPREAD_EPSILON,
    deviation: Tensor | None = None,
) -> Tensor:
    """Return the advantages of rewards [groups, siblings], in the same shape: r - mean of the group, divided by

    `group`: std of the group + epsilon (DeepSeekMath, arXiv 2402.03300, section 4.1.2). `batch`: std of all rewards +
    epsilon (arXiv 2508.08221; TRL). `none`: 1 (Dr. GRPO, arXiv 2503.20783, section 3.2). `mean`: mean of the group,
    where it exceeds 0 (MaxRL, arXiv 2602.02710). A group of equal rewards gets exactly zero.

    Variances divide by the number of rewards minus `ddof`. `deviation` is that of the whole batch if `rewards` are a
    part of it.
    """
    mean = rewards.mean(dim=1, keepdim=True)
    centred = rewards - mean
    is_equal = rewards.amax(dim=1, keepdim=True) == rewards.amin(dim=1, keepdim=True)
    if scale == "group":
        centred = centred / (rewards.std(dim=1, keepdim=True, correction=ddof) + epsilon)
    elif scale == "batch":
        centred = centred / ((rewards.std(correction=ddof) if deviation is None else deviation) + epsilon)
    elif scale == "mean":
        is_equal, centred = is_equal | (mean <= 0), centred / mean
    return torch.where(is_equal, 0.0, centred)


def compute_weights(lengths: Tensor, kind: Normaliser, *, constant: int) -> Tensor:
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


def compute_objective(ratio: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """Return min(min(r, delta) A, clip(r, 1 - eps, 1 + eps_high) A) per token [n].

    It is formula 2 of INTELLECT-2 (arXiv 2505.07291, section 3.4), with the upper epsilon of DAPO (arXiv 2503.14476).
    """
    unclipped = (ratio if settings.delta is None else ratio.clamp(max=settings.delta)) * advantages
    clipped = ratio.clamp(1 - settings.epsilon, settings.highest_ratio) * advantages
    return torch.minimum(unclipped, clipped)


def compute_gain(ratio: Tensor, advantages: Tensor, logprobs: Tensor, settings: LossSettings) -> Tensor:
    """Return the gain per token [n], whose gradient is the policy gradient.

    `cispo`: min(r, eps_high) A log p with a constant ratio (MiniMax-M1, arXiv 2506.13585, formula 4, without a lower
    bound; TRL). `policy_gradient`: r A (prime-rl). All others: `compute_objective`.
    """
    if settings.loss_type == "cispo":
        return ratio.clamp(max=settings.highest_ratio).detach() * advantages * logprobs.clamp(min=-FAR)
    if settings.loss_type == "policy_gradient":
        return ratio * advantages
    return compute_objective(ratio, advantages, settings)


def is_clipped(ratio: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """Return for each token whether the objective is independent of its ratio, bool [n]."""
    if settings.loss_type == "policy_gradient":
        return torch.zeros_like(ratio, dtype=torch.bool)
    if settings.loss_type == "cispo":
        return (advantages != 0) & (ratio > settings.highest_ratio)
    too_high = (advantages > 0) & (ratio > settings.highest_ratio)
    is_bounded = False if settings.delta is None else ratio > settings.delta
    too_low = (advantages < 0) & ((ratio < 1 - settings.epsilon) | is_bounded)
    return too_high | too_low


def compute_kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return exp(d) - d - 1 with d = log p_ref - log p, per token [n] (Schulman's k3).

    It is at least 0 and unbiased for KL(p || p_ref) on samples of p. The gradient flows through `logprobs` where d is
    within bounds that keep it finite.

    Its gradient is an unbiased estimate of the gradient of KL(p_ref || p), not of KL(p || p_ref), because it ignores
    that p determines the samples. Multiplied by a differentiable p / p_old, as in `k3_corrected`, value and gradient
    are unbiased for KL(p || p_ref) on samples of p_old (DeepSeek-V3.2, arXiv 2512.02556, section 3.1).
    """
    d = (reference - logprobs).nan_to_num(nan=0.0, posinf=LOG_RATIO_LIMIT, neginf=-FAR)
    d = d.clamp(min=-FAR, max=LOG_RATIO_LIMIT)
    return torch.exp(d) - d - 1


def compute_loss(
    *,
    logprobs: Tensor,
    old: Tensor | None,
    proximal: Tensor | None,
    advantages: Tensor,
    weights: Tensor,
    segments: Tensor,
    entropy: Tensor,
    reference: Tensor | None,
    settings: LossSettings,
    custom: CustomLoss | None = None,
) -> tuple[Tensor, TokenSums]:
    """Return the loss to minimise, a sum weighted by `weights`, and statistics without gradient.

    All tensors are per token [n]. `old` is log p under the policy that sampled. `proximal` is log p under the policy at
    the start of the step, for a decoupled objective. Either is None if that policy also produced `logprobs`, as in
    the first update of a step. Tokens with equal numbers in `segments` are those of one completion.

    If masked tokens leave the denominator, the caller multiplies loss and gradients by `weight` / `kept_weight` of the
    whole update. `custom` replaces the gain of `loss_type`.

    Raises ValueError if the KL divergence is enabled and `reference` is None.
    """
    if settings.beta > 0 and reference is None:
        raise ValueError("the KL divergence has a weight, but the samples have no reference log-probabilities")
    old = logprobs.detach() if old is None else old
    start = old
    if settings.is_decoupled:
        start = logprobs.detach() if proximal is None else proximal
    if settings.importance_sampling_level == "sequence":
        ratio = compute_sequence_ratio(logprobs, start, segments)
    else:
        ratio = compute_ratio(logprobs, start)
    importance = compute_importance(
        current=logprobs, start=start, sampler=old, advantages=advantages, segments=segments, settings=settings
    )
    # Before the gain, because the order in which gradients are summed determines their last bits.
    correction = importance.weights * ratio if settings.is_decoupled else ratio
    if custom is None:
        gain = compute_gain(ratio, advantages * importance.weights, logprobs, settings)
    else:
        gain = -custom(
            LossInputs(
                logprobs=logprobs, start=start, sampler=old, advantages=advantages, importance=importance.weights,
                kept=importance.kept, segments=segments, entropy=entropy, reference=reference,
            )
        )  # fmt: skip
    gain = torch.where(importance.kept, gain, 0.0)
    kl = torch.zeros_like(gain) if reference is None else compute_kl(logprobs, reference)
    if settings.kl_estimator == "k3_corrected":
        kl = correction * kl
    elif settings.kl_estimator == "k3_ratio":
        kl = ratio * kl
    if settings.beta > 0:
        gain = gain - settings.beta * kl
    if settings.kl_tau > 0:
        gain = gain - settings.kl_tau * limit_log_ratio(logprobs - old, LOG_RATIO_LIMIT).square()
    if settings.entropy_coef > 0:
        gain = gain + settings.entropy_coef * entropy
    share = weights
    if settings.drops_masked:
        share = _drop_masked(weights, importance, segments, settings)
        gain = torch.where(importance.kept, gain, 0.0)
    loss = -(share * gain).sum()
    with torch.no_grad():
        drift = compute_ratio(logprobs, old)
        mismatch = compute_kl(old.double(), logprobs.double())  # in float32 values near 0 would be rounding noise
        is_truncated = importance.truncated & (advantages != 0)
        statistics = {
            "loss": loss,
            "weight": weights,
            "kept_weight": share,
            "masked": ~importance.kept,
            "clipped": is_clipped(ratio, advantages * importance.weights, settings) | is_truncated,
            "ratio": drift,
            "entropy": entropy,
            "kl": kl,
            "outside_clip": (drift > settings.highest_ratio) | (drift < 1 - settings.epsilon),
            "mismatch_kl": mismatch,
        }
        sums = [each.double().sum() for each in statistics.values()]
        highest = mismatch.amax() if len(mismatch) else mismatch.sum()
        values = torch.stack([*sums, highest]).tolist()  # all at once, to synchronise with a GPU only once
    names = (*statistics, "mismatch_kl_max")
    return loss, TokenSums(tokens=len(ratio), **dict(zip(names, values, strict=True)))


def _drop_masked(weights: Tensor, importance: Importance, segments: Tensor, settings: LossSettings) -> Tensor:
    """Return weights in which masked tokens do not count, [n], up to the factor that `compute_loss` names.

    The normaliser `constant` does not depend on the number of tokens, so its weights do not change.
    """
    if settings.normaliser == "constant":
        return weights
    kept = torch.where(importance.kept, weights, 0.0)
    if settings.normaliser == "sequence":
        kept = kept * (sum_segments(weights, segments) / sum_segments(kept, segments).clamp(min=1e-30)).to(kept.dtype)
    return kept
