"""Decides whether a proof window is as close to its replay as honest work is."""

from covey.protocol.thresholds import Thresholds
from covey.toploc.proofs import Distances


def is_within(thresholds: Thresholds, distances: Distances) -> bool:
    """Return whether a window's distances are within the limits.

    Comparisons use `<=`, so that NaN exceeds every limit.
    """
    return (
        distances.sign_exponent_mismatches <= thresholds.exponent_max
        and distances.mantissa_rest <= thresholds.mantissa_mean_max
    )
