"""Replays claimed completions with the claimed policy, and measures the distances between claims and replay.

Any `Engine` that has loaded the submission's policy can be used.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from covey.engines.base import Engine, ReplayRequest
from covey.protocol.params import PoolParams
from covey.protocol.submission_file.rows import Rollout
from covey.toploc.proofs import Distances, compare_many
from covey.toploc.topk import build_capture


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutDistances:
    """Distances between one rollout's claims and its replay.

    Example with two honest tokens: RolloutDistances(windows=(Distances(...),), margins=[0, 0], deviations=[0, 1e-7],
    finished=True).
    """

    windows: tuple[Distances, ...]
    """Distances of each proof window, one per proof."""
    margins: NDArray[np.float32]
    """Amount by which each token lost to the seeded argmax, float32[tokens]. 0 if it is the argmax."""
    deviations: NDArray[np.float64]
    """|claimed - replayed| log-probability of each token, float64[tokens]."""
    finished: bool
    """Whether the last token is an end token."""

    @property
    def tokens(self) -> int:
        return len(self.margins)

    @property
    def margin_max(self) -> float:
        return float(self.margins.max())

    @property
    def logprob_max(self) -> float:
        return float(self.deviations.max())

    def is_same(self, other: "RolloutDistances") -> bool:
        """Return whether two replays of one rollout gave the same distances, bit for bit."""
        mine, others = (
            [np.array([astuple(each) for each in one.windows]), one.margins, one.deviations] for one in (self, other)
        )
        return all(np.array_equal(one, another, equal_nan=True) for one, another in zip(mine, others, strict=True))


def measure(rollouts: Sequence[Rollout], engine: Engine, params: PoolParams) -> list[RolloutDistances]:
    """Return the distances of every rollout, in order. The form of tokens and proofs must have been checked."""
    if not rollouts:
        return []
    claims = [ReplayRequest(prompt=r.prompt, tokens=r.tokens, seed=r.seed) for r in rollouts]
    capture = build_capture(params.verification)
    replays = engine.replay(claims, temperature=params.model.temperature, capture=capture)
    compared = compare_many([row.proofs for row in rollouts], [replay.tops for replay in replays])
    return [
        RolloutDistances(
            windows=tuple(windows),
            margins=replay.margins,
            deviations=np.abs(np.asarray(row.logprobs, np.float64) - replay.logprobs),
            finished=row.finished,
        )
        for row, replay, windows in zip(rollouts, replays, compared, strict=True)
    ]
