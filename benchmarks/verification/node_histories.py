"""Histories of simulated nodes: what validators replay of one submission after another, and what it adds up to.

A pool has three validators and a quorum of two.  One of them, drawn for each submission, replays the drawn rows, and a
quorum replays what is drawn whole.  A node that is above its running sums is replayed whole from then on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.protocol.running_sums import REPLAY_ALLOWANCE, WINDOW, Sums, add, compare
from covey.protocol.thresholds import Thresholds

VALIDATORS, QUORUM = 3, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What a replay of each submission finds: of `n` submissions, each with a number of draws of its rows."""

    whole: NDArray[np.bool_]
    """Whether a whole replay rejects each submission, bool[n]."""
    rows: NDArray[np.bool_]
    """Whether the rows of each draw reject it, bool[n, draws]."""
    whole_sums: Sequence[Sums]
    """Sums of a whole replay of each submission.  Empty if nothing can be replayed."""
    row_sums: Sequence[Sequence[Sums]]
    """Sums of the rows of each draw of each submission."""


class RunningSums:
    """The running sums of one node, as the coordinator keeps them."""

    def __init__(self, limits: Thresholds, rng: np.random.Generator) -> None:
        self._limits, self._rng = limits, rng
        self._by_validator: dict[int, Sums] = {}
        self._submissions = 0

    def add(self, sums: Sums, *, validators: int) -> bool:
        """Add what a number of drawn validators found in an accepted submission; return whether the node is above."""
        for validator in self._rng.choice(VALIDATORS, size=validators, replace=False).tolist():
            self._by_validator[validator] = add(self._by_validator.get(validator, {}), sums)
        self._submissions += 1
        by_name: Mapping[str, Sums] = {str(number): each for number, each in self._by_validator.items()}
        standings = compare(by_name, self._limits, quorum=QUORUM, allowance=REPLAY_ALLOWANCE)
        is_above = any(each.is_above for each in standings)
        if self._submissions >= WINDOW and not is_above:
            self._by_validator, self._submissions = {}, 0
        return is_above


def count_until_seen(
    evidence: Evidence,
    limits: Thresholds,
    *,
    whole_rate: float,
    most: int,
    rng: np.random.Generator,
    has_sums: bool = True,
    newcomer: int = 0,
) -> tuple[int, bool]:
    """Play one node that submits at random from the evidence, until a replay rejects or it is above its running sums.

    Returns the number of submissions, and whether it was above its sums before any replay rejected.  The number is
    `most` + 1 if neither happened.  A share `whole_rate` of the submissions is replayed whole.  Without `has_sums` only
    replays count.  The first `newcomer` submissions are replayed whole.
    """
    sums = RunningSums(limits, rng)
    for number in range(1, most + 1):
        submission, is_whole = int(rng.integers(len(evidence.whole))), rng.random() < whole_rate or number <= newcomer
        draw = int(rng.integers(evidence.rows.shape[1]))
        if evidence.rows[submission, draw] or (is_whole and evidence.whole[submission]):
            return number, False
        found = evidence.whole_sums[submission] if is_whole else evidence.row_sums[submission][draw]
        if has_sums and sums.add(found, validators=QUORUM if is_whole else 1):
            return number, True
    return most + 1, False
