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
    """Of one item (a window or a token)."""
    variance: Limit = 0.0
    """Of a sum over a completion, by item: items of one completion go together."""
    largest: Limit = 0.0
    """How far one item was above the mean at most."""

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
    """Sign or exponent mismatches among the up to 128 values of one window."""
    mantissa_mean_max: Limit = 0.0125
    """Mean difference of the 7-bit mantissas of one window where sign and exponent agree, without the largest one.  The
    default lets two of 128 values of float32 work round otherwise."""
    margin_max: Limit = 1e-4
    """Margin by which any one token lost to the seeded argmax."""
    logprob_max: Limit = 1e-3
    """Absolute difference of claimed and replayed log-probability of any one token."""
    false_reject_rate: float = Field(default=1e-6, gt=0, lt=1)
    """With which each sum of an honest submission may be beyond its limit."""
    exponent: Pooled | None = None
    """Of windows; like the next four: None leaves the sum unchecked."""
    mantissa: Pooled | None = None
    """Of windows."""
    lost: Pooled | None = None
    """Of tokens: 1 where the claimed one lost to the seeded argmax."""
    margin: Pooled | None = None
    """Of tokens."""
    logprob: Pooled | None = Pooled(mean=2e-5, largest=1e-5)
    """Of tokens."""
