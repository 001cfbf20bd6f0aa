"""Limits of the distances between a claim and its replay. They are part of a pool's parameters.

Calibration writes them, and they hold for one number format and one pair of engines. The defaults are for float32
arithmetic on both sides, with any engines and batch shapes.
"""

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Pooled(BaseModel):
    """Distribution of one statistic of honest work, from which the limit of its sum over a submission follows.

    Example: Pooled(mean=0.4, variance=0.01, largest=0.3).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    mean: Limit
    """Mean of one item, which is a window or a token."""
    variance: Limit = 0.0
    """Variance of the sum over a completion, divided by its items. The sum is used because the items of one completion
    are correlated."""
    largest: Limit = 0.0
    """Largest amount by which one item exceeded the mean."""

    def compute_limit(self, count: int, false_reject_rate: float) -> float:
        """Return the largest honest sum over `count` items, by Bernstein's inequality for bounded, independent items.

        Let n = `count`, b = `largest`, v = `variance` and L = ln(1 / `false_reject_rate`). An excess over the mean of
        more than t = bL/3 + sqrt((bL/3)^2 + 2nvL) has at most the probability `false_reject_rate`.
        """
        scale = -math.log(false_reject_rate)
        linear = self.largest * scale / 3
        return count * self.mean + linear + math.sqrt(linear**2 + 2 * count * self.variance * scale)


class Thresholds(BaseModel):
    """Largest distances of honest work: for a single window or token, and summed over a submission.

    The defaults were measured on models of a million parameters, with Hugging Face or vLLM against Hugging Face. Every
    token matched, at most 2 of 128 exponents differed, and log-probabilities differed by 1e-6 on average. With many
    layers and steep distributions, honest log-probabilities come near these limits. Calibrate for such models even in
    float32.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    exponent_max: int = Field(default=3, ge=0, lt=1 << 16)
    """Largest number of sign or exponent mismatches among the values of one window, of which there are at most 128."""
    mantissa_mean_max: Limit = 0.0125
    """Largest mean difference of the 7-bit mantissas of one window, over values whose sign and exponent agree. The
    largest difference is left out. The default allows two of 128 values of float32 work to be rounded differently."""
    margin_max: Limit = 1e-4
    """Largest margin by which one token may lose to the seeded argmax."""
    logprob_max: Limit = 1e-3
    """Largest absolute difference between the claimed and the replayed log-probability of one token."""
    false_reject_rate: float = Field(default=1e-6, gt=0, lt=1)
    """Probability with which each sum over an honest submission may exceed its limit."""
    exponent: Pooled | None = None
    """Distribution that limits the sum of mismatches over all windows of a submission. None: it is not checked."""
    mantissa: Pooled | None = None
    """Distribution that limits the sum of mantissa differences over all windows of a submission. None: it is not
    checked."""
    lost: Pooled | None = None
    """Distribution that limits the number of tokens of a submission that lost to the seeded argmax. None: it is not
    checked."""
    margin: Pooled | None = None
    """Distribution that limits the sum of margins over all tokens of a submission. None: it is not checked."""
    logprob: Pooled | None = Pooled(mean=2e-5, largest=1e-5)
    """Distribution that limits the sum of log-probability differences over all tokens of a submission. None: it is not
    checked."""
