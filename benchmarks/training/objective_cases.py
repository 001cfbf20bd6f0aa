"""The objectives that are compared with peers, and the batches that they are compared on.

A batch has groups of completions with log-probabilities under four policies. One is random, and the other enumerates
all combinations of a few values, so that every clip, bound and mask applies to some token and spares others.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from trainer.algorithm.loss_settings import PRESETS, LossSettings

SIBLINGS = 4
"""Number of completions in a group."""
LONGEST = 8
"""Length limit of a completion, in tokens."""
VALUES = (-0.05, -0.6, -2.0, -5.0)
"""Log-probabilities that the enumerated batch combines: 0.95, 0.55, 0.14 and 0.007 as probabilities."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredCompletion:
    """A completion with log p of its tokens under each policy."""

    reward: float
    finished: bool
    current: tuple[float, ...]
    """Under the policy in training."""
    start: tuple[float, ...]
    """Under the policy at the start of the step."""
    sampler: tuple[float, ...]
    """Under the policy that sampled."""
    reference: tuple[float, ...]
    """Under the policy of step 0."""


Batch = Sequence[ScoredCompletion]
"""Completions, of which each `SIBLINGS` are a group."""


def draw_batch(seed: int, groups: int = 6) -> list[ScoredCompletion]:
    """Draw a batch. Policies differ little in most tokens and much in some."""
    rng = random.Random(seed)

    def move(logprobs: Sequence[float]) -> tuple[float, ...]:
        spread = rng.choice((0.02, 0.2, 1.0))
        return tuple(min(-1e-3, value + rng.gauss(0, spread)) for value in logprobs)

    batch = []
    for _ in range(groups * SIBLINGS):
        start = tuple(-rng.expovariate(1.0) - 1e-3 for _ in range(rng.randrange(1, LONGEST + 1)))
        batch.append(
            ScoredCompletion(
                reward=rng.choice((0.0, 0.0, 0.5, 1.0)), finished=rng.random() < 0.75, current=move(start),
                start=start, sampler=move(start), reference=move(start),
            )
        )  # fmt: skip
    return batch


def enumerate_batch() -> list[ScoredCompletion]:
    """Build completions of one and of four tokens with all combinations of `VALUES` for three policies."""
    triples = list(product(VALUES, repeat=3))
    chunks = [triples[i : i + size] for size in (1, 4) for i in range(0, len(triples), size)]
    batch = []
    for i, chunk in enumerate(chunks):
        current, start, sampler = zip(*chunk, strict=True)
        reference = tuple(VALUES[(i + k) % len(VALUES)] for k in range(len(chunk)))
        batch.append(
            ScoredCompletion(
                reward=float(i % 3 == 0), finished=i % 5 != 0, current=current, start=start, sampler=sampler,
                reference=reference,
            )
        )  # fmt: skip
    return batch


def build_batches() -> list[list[ScoredCompletion]]:
    """Return the batches of the comparison."""
    return [enumerate_batch(), *(draw_batch(seed) for seed in range(3))]


_PLAIN = {"delta": None, "importance_sampling_mode": "none"}
_DECOUPLED = {"delta": None, "kl_estimator": "k3_ratio"}
TRL: Mapping[str, LossSettings] = {
    name: LossSettings.model_validate(values)
    for name, values in {
        "trl@1": {"preset": "trl@1"},
        "grpo": {**_PLAIN, "loss_type": "grpo"},
        "dapo": {**_PLAIN},
        "epsilon_high": {**_PLAIN, "epsilon_high": 0.28},
        "two_sided": {**_PLAIN, "delta": 4.0},
        "dr_grpo": {**_PLAIN, "loss_type": "dr_grpo", "scale_rewards": "none"},
        "cispo": {**_PLAIN, "loss_type": "cispo", "epsilon_high": 5.0},
        "gspo": {**_PLAIN, "loss_type": "grpo", "importance_sampling_level": "sequence"},
        "mask_truncated": {**_PLAIN, "mask_truncated_completions": True},
        "scale_rewards_batch": {**_PLAIN, "scale_rewards": "batch"},
        "kl": {**_PLAIN, "beta": 0.1, "kl_estimator": "k3"},
        "kl_corrected": {**_PLAIN, "beta": 0.1, "kl_estimator": "k3_corrected"},
        "token_truncate": {**_DECOUPLED, "importance_sampling_clip_max": 2.0},
        "token_truncate_low": {**_DECOUPLED, "importance_sampling_clip_max": 2.0, "importance_sampling_clip_min": 0.5},
        "token_mask": {**_DECOUPLED, "importance_sampling_mode": "token_mask", "importance_sampling_clip_max": 2.0},
        "icepop": {
            **_DECOUPLED, "importance_sampling_mode": "icepop", "importance_sampling_clip_min": 0.5,
            "importance_sampling_clip_max": 5.0, "loss_type": "grpo",
        },
        "sequence_truncate": {**_DECOUPLED, "importance_sampling_mode": "sequence_truncate"},
        "sequence_mask": {
            **_DECOUPLED, "importance_sampling_mode": "sequence_mask", "importance_sampling_clip_max": 3.0,
        },
        "sequence_mask_kl": {
            **_DECOUPLED, "importance_sampling_mode": "sequence_mask", "importance_sampling_clip_max": 3.0, "beta": 0.1,
        },
        "opsm": {**_DECOUPLED, "importance_sampling_clip_max": 3.0, "mask": "opsm", "mask_threshold": 0.1},
    }.items()
}  # fmt: skip
"""Objectives that TRL has, too. Advantages use TRL's deviation, which `with_trl_deviation` sets."""
REFERENCE: Mapping[str, LossSettings] = {
    **{name: LossSettings(preset=name) for name in PRESETS if name != "trl@1"},
    **{
        name: LossSettings.model_validate(values)
        for name, values in {
            "ipo": {**_PLAIN, "loss_type": "policy_gradient", "mask": "ipo", "mask_threshold": 0.1, "kl_tau": 1e-3},
            "dppo": {**_PLAIN, "loss_type": "policy_gradient", "mask": "dppo", "mask_threshold": 0.2},
            "kpop": {**_PLAIN, "mask": "kpop", "mask_threshold": 0.1},
            "opsm_dropped": {**_PLAIN, "mask": "opsm", "mask_threshold": 0.1, "masked_tokens": "drop"},
            "geometric": {"mask": "geometric", "mask_threshold": 1.3},
            "geometric_low": {"mask": "geometric", "mask_threshold": 3.0, "mask_threshold_low": 0.95},
            "k3": {"mask": "k3", "mask_threshold": 0.1, "loss_type": "grpo", "beta": 0.1},
            "k3_counted": {"mask": "k3", "mask_threshold": 0.1, "masked_tokens": "count"},
            "dr_grpo_masked": {"mask": "k3", "mask_threshold": 0.1, "loss_type": "dr_grpo"},
            "icepop_dropped": {"preset": "icepop@1", "masked_tokens": "drop", "loss_type": "dapo"},
            "kl_decoupled": {"beta": 0.1, "entropy_coef": 0.01},
        }.items()
    },
}
"""Objectives that are compared with the float64 reference."""


def with_trl_deviation(settings: LossSettings) -> LossSettings:
    """Return settings with the deviation of TRL: of a sample, plus 1e-4."""
    return settings.model_copy(update={"scale_rewards_ddof": 1, "scale_rewards_epsilon": 1e-4})
