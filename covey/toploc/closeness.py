"""Whether one proof window is as close as honest work; called by the validator and by calibration."""

from covey.protocol.thresholds import Thresholds
from covey.toploc.proofs import Distances


def is_within(thresholds: Thresholds, distances: Distances) -> bool:
    """Written as "within", so that what is not a number is beyond every limit."""
    return (
        distances.sign_exponent_mismatches <= thresholds.exponent_max
        and distances.mantissa_rest <= thresholds.mantissa_mean_max
    )
