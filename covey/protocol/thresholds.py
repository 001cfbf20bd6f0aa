"""Limits on the differences between a submission and its replay. They are part of a pool's parameters.

Calibration writes them. They are valid for one number format and one pair of engines. The defaults are for
float32 arithmetic on both sides, with any engines and batch shapes.
"""

import math
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Pooled(BaseModel):
    """Distribution of one statistic in honest submissions, from which the limit of its sum over a submission is
    derived.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    mean: Limit
    """Mean of the statistic per item. An item is a window or a token."""
    variance: Limit = 0.0
    """Variance of the statistic's sum over a completion, divided by the number of items. The sum is used because
    the items of one completion are correlated.
    """
    largest: Limit = 0.0
    """Largest amount by which one item exceeded the mean."""
    items: int = Field(default=0, ge=0, lt=1 << 63)
    """Number of items from which calibration estimated the mean. 0: the mean is not an estimate but an upper bound,
    and the variance is 0.
    """

    @model_validator(mode="after")
    def _require_items(self) -> Self:
        if self.variance > 0 and not self.items:
            raise ValueError(
                f"the variance is {self.variance:g}, so the mean is an estimate, but the number of items is missing."
                " Copy `items` from the output of covey validator calibrate, or calibrate again"
            )
        return self

    def compute_limit(self, count: int, false_reject_rate: float) -> float:
        """Return the limit on the sum over `count` items, by Bernstein's inequality for bounded, independent items.

        Let n = `count`, b = `largest`, v = `variance` and L = ln(1 / `false_reject_rate`). The limit is the mean of
        the sum plus t = bL/3 + sqrt((bL/3)^2 + 2nvL). An honest sum exceeds it with a probability of at most
        `false_reject_rate`.
        """
        scale = -math.log(false_reject_rate)
        linear = self.largest * scale / 3
        return count * self.mean + linear + math.sqrt(linear**2 + 2 * count * self.variance * scale)

    def compute_mean_error(self, rate: float) -> float:
        """Return by how much the true mean may exceed `mean`, with a probability of at most `rate`, by the same bound.

        0 if the mean is not an estimate.
        """
        return (self.compute_limit(self.items, rate) / self.items - self.mean) if self.items else 0.0

    def widen(self, other: Self) -> Self:
        """Return a distribution whose limits are at least those of both."""
        values = {name: max(value, getattr(other, name)) for name, value in self.model_dump().items()}
        values["items"] = min(filter(None, (self.items, other.items)), default=0)
        return self.model_validate(values)


class Thresholds(BaseModel):
    """Maximum differences between an honest submission and its replay, per window or token and in sum.

    The defaults were measured on models of a million parameters, with Hugging Face or vLLM against Hugging Face.
    Every token matched, at most 2 of 128 exponents differed, and log-probabilities differed by 1e-6 on average.
    In models with many layers and peaked distributions, honest log-probabilities come close to these limits.
    Calibrate for such models even in float32.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    exponent_max: int = Field(default=3, ge=0, lt=1 << 16)
    """Maximum number of mismatches in sign or exponent among the values of one window. A window has at most 128
    values.
    """
    mantissa_mean_max: Limit = 0.0125
    """Maximum mean difference of the 7-bit mantissas in one window, over values whose sign and exponent match. The
    largest difference is not counted. The default allows two of 128 float32 values to be rounded differently.
    """
    margin_max: Limit = 1e-4
    """Maximum margin by which a sampled token may fall short of the seeded argmax."""
    logprob_max: Limit = 1e-3
    """Maximum absolute difference between the claimed and the replayed log-probability of one token."""
    false_reject_rate: float = Field(default=1e-6, gt=0, lt=1)
    """Maximum probability with which a sum over an honest submission exceeds its limit. It applies to each sum
    separately.
    """
    exponent: Pooled | None = None
    """Distribution of exponent mismatches per window, which limits their sum over a submission. None: it is not
    checked.
    """
    mantissa: Pooled | None = None
    """Distribution of mantissa differences per window, which limits their sum over a submission. None: it is not
    checked.
    """
    lost: Pooled | None = None
    """Distribution of tokens that differ from the seeded argmax, which limits their number in a submission. None:
    it is not checked.
    """
    margin: Pooled | None = None
    """Distribution that limits the sum of margins over all tokens of a submission. None: it is not checked."""
    logprob: Pooled | None = Pooled(mean=2e-5, largest=1e-5)
    """Distribution that limits the sum of log-probability differences over all tokens of a submission. None: it is not
    checked."""

    def widen(self, other: Self) -> Self:
        """Return limits that work keeps if it keeps either of two. What one of them does not check is not checked."""
        limits: dict[str, object] = {}
        for name in type(self).model_fields:
            ours, theirs = getattr(self, name), getattr(other, name)
            if isinstance(ours, Pooled) and isinstance(theirs, Pooled):
                limits[name] = ours.widen(theirs)
            else:
                limits[name] = None if ours is None or theirs is None else max(ours, theirs)
        return self.model_validate(limits)
