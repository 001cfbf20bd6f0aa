"""Limits of the distances between a claim and its replay: part of a pool's parameters, written by calibration.

They hold for one number format and pair of engines.  The defaults are those of float32 arithmetic on both sides,
whatever the engines and batch shapes.
"""

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Pooled(BaseModel):
    """How one statistic of honest work adds up over a submission.

    Example: Pooled(mean=0.4, variance=0.01, largest=0.3).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    mean: Limit
    """Mean of one item, a window or a token."""
    variance: Limit = 0.0
    """Variance of the sum over a completion, per item: items of one completion vary together."""
    largest: Limit = 0.0
    """Largest amount by which one item was above the mean."""

    def compute_limit(self, count: int, false_reject_rate: float) -> float:
        """The largest honest sum over `count` items: Bernstein's inequality for bounded, independent ones.

        With L = ln(1 / rate), an excess of t has at most this probability where t = bL/3 + sqrt((bL/3)^2 + 2nvL).
        """
        scale = -math.log(false_reject_rate)
        linear = self.largest * scale / 3
        return count * self.mean + linear + math.sqrt(linear**2 + 2 * count * self.variance * scale)


class Thresholds(BaseModel):
    """Largest distances of honest work: of a single window or token, and summed over a submission.

    The defaults were measured on models of a million parameters, Hugging Face or vLLM against Hugging Face: every token
    matches, at most 2 of 128 exponents differ, log-probabilities by 1e-6 on average.  Of models with many layers and
    steep distributions honest log-probabilities come near these limits: calibrate those in float32 too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    exponent_max: int = Field(default=3, ge=0, lt=1 << 16)
    """Largest number of sign or exponent mismatches among the up to 128 values of one window."""
    mantissa_mean_max: Limit = 0.0125
    """Largest mean difference of the 7-bit mantissas of one window where sign and exponent agree, without the
    largest one. The default lets two of 128 values of float32 work round otherwise."""
    margin_max: Limit = 1e-4
    """Largest margin by which one token may lose to the seeded argmax."""
    logprob_max: Limit = 1e-3
    """Largest absolute difference of claimed and replayed log-probability of one token."""
    false_reject_rate: float = Field(default=1e-6, gt=0, lt=1)
    """Probability with which each sum over an honest submission may exceed its limit."""
    exponent: Pooled | None = None
    """Limit of the sum of mismatches over all windows of a submission. None: the sum is not checked."""
    mantissa: Pooled | None = None
    """Limit of the sum of mantissa differences over all windows of a submission. None: the sum is not checked."""
    lost: Pooled | None = None
    """Limit of the number of tokens of a submission that lost to the seeded argmax. None: it is not checked."""
    margin: Pooled | None = None
    """Limit of the sum of margins over all tokens of a submission. None: the sum is not checked."""
    logprob: Pooled | None = Pooled(mean=2e-5, largest=1e-5)
    """Limit of the sum of log-probability differences over all tokens of a submission. None: the sum is not
    checked."""
