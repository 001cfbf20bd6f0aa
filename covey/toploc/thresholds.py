"""Limits of the distances between a claim and its replay; the validator builds them from the pool's parameters.

They hold for one number format and pair of engines.  Comparisons are written as "within", so that what is not a number
is beyond every limit.
"""

from dataclasses import dataclass

from covey.toploc.proofs import Distances


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Largest distances of honest work.

    Example: Thresholds(exponent_max=3, mantissa_mean_max=0.02, margin_max=1e-4, logprob_mean_max=2e-5,
    logprob_max=1e-3).
    """

    exponent_max: int
    """Sign or exponent mismatches among the up to 128 values of one window."""
    mantissa_mean_max: float
    """Mean difference of the 7-bit mantissas of one window, where sign and exponent agree."""
    margin_max: float
    """Margin by which any one token lost to the seeded argmax."""
    logprob_mean_max: float
    """Mean absolute difference of claimed and replayed log-probabilities of one submission."""
    logprob_max: float
    """Largest such difference of any one token."""


def is_within(thresholds: Thresholds, distances: Distances) -> bool:
    """Whether one proof window is as close as honest work."""
    return (
        distances.sign_exponent_mismatches <= thresholds.exponent_max
        and distances.mantissa_mean <= thresholds.mantissa_mean_max
    )
