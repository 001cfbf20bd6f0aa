"""Limits of the distances between a claim and its replay, and the one function that applies them.

`FP32` is fixed; other number formats need limits calibrated for model, dtype and pair of engines.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from covey.toploc.proofs import Distances


class Signal(StrEnum):
    """Which of a replay's signals went beyond its limit."""

    PROOF = "proof"
    MARGIN = "margin"
    LOGPROB = "logprob"


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Largest distances of honest work.  The defaults hold for float32 arithmetic on both sides and any batch shape:
    no false reject in 4,860 windows of two architectures."""

    exponent_max: int = 3
    """Sign or exponent mismatches among the up to 128 values of one window."""
    mantissa_mean_max: float = 0.02
    """Mean difference of the 7-bit mantissas of one window, where sign and exponent agree."""
    margin_max: float = 1e-4
    """Margin by which any one token lost to the seeded argmax."""
    logprob_mean_max: float = 2e-5
    """Mean absolute difference of claimed and replayed log-probabilities of one submission."""
    logprob_max: float = 1e-3
    """Largest such difference of any one token."""


FP32 = Thresholds()


def compute_exceeded(
    thresholds: Thresholds,
    *,
    distances: Iterable[Distances],
    margins: NDArray[np.floating],
    logprob_differences: NDArray[np.floating],
) -> Signal | None:
    """The first signal of one submission beyond its limit, or None if it is within all of them.

    `distances`: one per proof window.  `margins`, `logprob_differences` (absolute): one per token, any shape.
    What is not a number is beyond every limit.
    """
    # Written as "not all within" instead of "any beyond", because every comparison with NaN is false.
    if not bool(np.all(margins <= thresholds.margin_max)):
        return Signal.MARGIN
    if not all(is_within(thresholds, each) for each in distances):
        return Signal.PROOF
    if logprob_differences.size == 0:
        return None
    largest, mean = float(np.max(logprob_differences)), float(np.mean(logprob_differences, dtype=np.float64))
    within = largest <= thresholds.logprob_max and mean <= thresholds.logprob_mean_max
    return None if within else Signal.LOGPROB


def is_within(thresholds: Thresholds, distances: Distances) -> bool:
    """Whether one proof window is as close as honest work."""
    return (
        distances.sign_exponent_mismatches <= thresholds.exponent_max
        and distances.mantissa_mean <= thresholds.mantissa_mean_max
    )
