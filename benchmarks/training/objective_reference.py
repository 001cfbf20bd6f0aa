"""The objectives as published, in plain floats and loops, as an independent reference.

Nothing here is shared with the trainer except the names of the settings. Gradients are central differences by the
log-probabilities of the policy in training. Quantities without gradient are computed from a frozen copy of them.
"""

import math
from collections.abc import Callable, Sequence
from statistics import mean, pstdev, stdev

from benchmarks.training.objective_cases import LONGEST, SIBLINGS, Batch, ScoredCompletion
from trainer.algorithm.loss_settings import LossSettings

ENTROPY = 1.5
"""Entropy of every token, in nats, which does not depend on the log-probabilities here."""
STEP = 1e-5
"""Distance of central differences."""


def compute_advantages(rewards: Sequence[float], settings: LossSettings) -> list[float]:
    """Return the advantages of rewards, of which each `SIBLINGS` are a group."""
    deviate: Callable[[Sequence[float]], float] = stdev if settings.scale_rewards_ddof else pstdev
    advantages = []
    for i in range(0, len(rewards), SIBLINGS):
        group = rewards[i : i + SIBLINGS]
        for reward in group:
            centred, divisor = reward - mean(group), 1.0
            if settings.scale_rewards == "group":
                divisor = deviate(group) + settings.scale_rewards_epsilon
            elif settings.scale_rewards == "batch":
                divisor = deviate(rewards) + settings.scale_rewards_epsilon
            elif settings.scale_rewards == "mean":
                divisor = mean(group) if mean(group) > 0 else math.inf
            advantages.append(centred / divisor)
    return advantages


def weigh(each: ScoredCompletion, settings: LossSettings) -> list[float]:
    """Return the importance weight of each token, 0 where it is masked."""
    high, low = settings.importance_sampling_clip_max, settings.importance_sampling_clip_min or 0.0
    mode = settings.importance_sampling_mode
    if mode == "none":
        return [1.0] * len(each.start)
    ratios = [math.exp(a - b) for a, b in zip(each.start, each.sampler, strict=True)]
    if mode.startswith("sequence"):
        ratios = [math.prod(ratios)] * len(ratios)
    if mode.endswith("truncate"):
        return [max(low, min(high, ratio)) for ratio in ratios]
    return [ratio if low <= ratio <= high else 0.0 for ratio in ratios]


def find_kept(each: ScoredCompletion, advantage: float, settings: LossSettings) -> list[bool]:
    """Return for each token whether the mask keeps it."""
    n, most = len(each.start), settings.mask_threshold or 0.0
    low = settings.mask_threshold_low
    is_start = settings.importance_sampling_mode != "none" and settings.mask != "opsm"
    trainer = each.start if is_start else each.current
    pairs = [(math.exp(a), math.exp(b)) for a, b in zip(trainer, each.sampler, strict=True)]
    if settings.mask == "ipo":
        return [abs(p - q) <= most for p, q in pairs]
    if settings.mask == "dppo":
        return [p - q <= most if advantage > 0 else q - p <= (most if low is None else low) for p, q in pairs]
    if settings.mask == "kpop":

        def diverge(p: float, q: float) -> float:
            return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

        return [diverge(p, q) <= most and diverge(q, p) <= most for p, q in pairs]
    if settings.mask == "opsm":
        return [advantage >= 0 or mean(math.log(q / p) for p, q in pairs) <= most] * n
    if settings.mask == "geometric":
        root = math.prod(p / q for p, q in pairs) ** (1 / n)
        return [(1 / most if low is None else low) <= root <= most] * n
    if settings.mask == "k3":
        return [mean(p / q - math.log(p / q) - 1 for p, q in pairs) <= most] * n
    return [True] * n


def compute_tokens(
    each: ScoredCompletion, advantage: float, live: Sequence[float], settings: LossSettings
) -> tuple[list[float], list[bool]]:
    """Return the loss of each token before it is weighted, and whether it has a policy gradient."""
    weights, kept = weigh(each, settings), find_kept(each, advantage, settings)
    kept = [keep and weight > 0 for keep, weight in zip(kept, weights, strict=True)]
    base = each.sampler if settings.importance_sampling_mode == "none" else each.start

    def compute_ratios(logprobs: Sequence[float]) -> list[float]:
        logs = [a - b for a, b in zip(logprobs, base, strict=True)]
        if settings.importance_sampling_level == "sequence":
            logs = [mean(logs)] * len(logs)
        return [math.exp(log) for log in logs]

    high = settings.epsilon if settings.epsilon_high is None else settings.epsilon_high
    losses = []
    for i, (ratio, frozen) in enumerate(zip(compute_ratios(live), compute_ratios(each.current), strict=True)):
        if settings.loss_type == "cispo":
            gain = min(frozen, high) * advantage * live[i]
        elif settings.loss_type == "policy_gradient":
            gain = ratio * advantage
        else:
            bounded = ratio if settings.delta is None else min(ratio, settings.delta)
            gain = min(bounded * advantage, max(1 - settings.epsilon, min(1 + high, ratio)) * advantage)
        loss = -gain * weights[i] if kept[i] else 0.0
        d = each.reference[i] - live[i]
        kl = math.exp(d) - d - 1
        if settings.kl_estimator != "k3":
            kl *= ratio * (weights[i] if settings.kl_estimator == "k3_corrected" else 1.0)
        loss += settings.beta * kl + settings.kl_tau * (live[i] - each.sampler[i]) ** 2
        losses.append(loss - settings.entropy_coef * ENTROPY)
    return losses, kept


def compute_loss(batch: Batch, settings: LossSettings, live: Sequence[Sequence[float]]) -> float:
    """Return the loss of a batch. `live` has the log-probabilities by which it is differentiated."""
    advantages = compute_advantages([each.reward for each in batch], settings)
    rows = [
        compute_tokens(each, advantage, logprobs, settings)
        for each, advantage, logprobs in zip(batch, advantages, live, strict=True)
        if each.finished or not settings.mask_truncated_completions
    ]
    is_dropped = settings.mask in ("kpop", "geometric", "k3")
    if settings.masked_tokens != "published":
        is_dropped = settings.masked_tokens == "drop"
    counted = [
        [loss for loss, keep in zip(losses, kept, strict=True) if keep or not is_dropped] for losses, kept in rows
    ]
    if settings.loss_type == "dr_grpo":
        return sum(map(sum, counted)) / (len(rows) * LONGEST)
    if settings.loss_type == "grpo":
        return mean(sum(losses) / len(losses) for losses in counted if losses)
    return sum(map(sum, counted)) / sum(map(len, counted))


def compute_gradient(batch: Batch, settings: LossSettings) -> list[float]:
    """Return the derivative of the loss by each log-probability, in the order of the batch."""
    live = [list(each.current) for each in batch]
    slopes = []
    for row in live:
        for i, value in enumerate(row):
            row[i] = value + STEP
            up = compute_loss(batch, settings, live)
            row[i] = value - STEP
            slopes.append((up - compute_loss(batch, settings, live)) / (2 * STEP))
            row[i] = value
    return slopes
