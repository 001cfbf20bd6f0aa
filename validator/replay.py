"""Replays claimed completions on the claimed policy and measures how far the claims are from it.

Called by `checks`; the engine is any `Engine` that holds the policy of the submission.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covey.engines.base import Engine, ReplayRequest
from covey.protocol.params import PoolParams
from covey.protocol.rollout import Rollout
from covey.toploc.proofs import Distances, compare_all


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutDistances:
    """One rollout's claims against its replay."""

    windows: tuple[Distances, ...]
    """One a proof."""
    margin_max: float
    """By how much the worst token lost to the seeded argmax."""
    logprob_sum: float
    """Sum over tokens of |claimed - replayed| log-probability."""
    logprob_max: float
    tokens: int


def measure(rollouts: Sequence[Rollout], engine: Engine, params: PoolParams) -> list[RolloutDistances]:
    """Distances of every rollout, in order; tokens and proofs have been checked for form before."""
    claims = [ReplayRequest(prompt=r.prompt, tokens=r.tokens, seed=r.seed) for r in rollouts]
    replays = engine.replay(claims, temperature=params.model.temperature)
    rules = params.verification
    found = []
    for row, replay in zip(rollouts, replays, strict=True):
        deviation = np.abs(np.asarray(row.logprobs, np.float64) - replay.logprobs)
        windows = compare_all(list(row.proofs), replay.hidden_bits, rules.proof_window, rules.proof_top_k)
        found.append(
            RolloutDistances(
                windows=tuple(windows),
                margin_max=float(replay.margins.max()),
                logprob_sum=float(deviation.sum()),
                logprob_max=float(deviation.max()),
                tokens=len(row.tokens),
            )
        )
    return found
