"""Measured numbers and the bars that they must reach.

A `Measurement` is a number under the name that documents quote.  A `Bar` limits it from below, from above or both.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Limits of a number, both inclusive.  Example: Bar(least=0.9)."""

    least: float | None = None
    """Smallest value that passes.  None means that there is no lower limit."""
    most: float | None = None
    """Largest value that passes.  None means that there is no upper limit."""

    def describe_miss(self, value: float) -> str | None:
        """Describe how a value misses the bar, or return None if it passes.  NaN passes no bar."""
        if self.least is not None and not value >= self.least:
            return f"below {self.least:g}"
        if self.most is not None and not value <= self.most:
            return f"above {self.most:g}"
        return None

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"{self.least:,g} to {self.most:,g}"
        return f"at least {self.least:,g}" if self.least is not None else f"at most {self.most:,g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A number under the name that documents quote.  Example: name="demo_seconds", value=95.1, unit="s", n=1."""

    name: str
    """Name of the number.  Parts after the first dot name variants: "cost_full.large"."""
    value: float
    """Measured number.  NaN or infinity if there is none, as for a goal that no run reached."""
    unit: str
    """Unit of `value`, "ratio" or "count"."""
    n: int
    """Number of samples that `value` summarises."""
    peer: str = ""
    """What the number is compared with, measured in the same run.  Empty if there is nothing to compare."""
    bar: Bar | None = None
    """Limits that the number must keep.  None if it has none."""


def set_bars(measurements: Iterable[Measurement], bars: Mapping[str, Bar]) -> list[Measurement]:
    """Return the measurements with their bars.

    A key of `bars` is a whole name, or the part before the first dot of all the names that it applies to.  The whole
    name takes precedence.
    """
    return [
        replace(each, bar=bars.get(each.name, bars.get(each.name.partition(".")[0], each.bar))) for each in measurements
    ]


def find_misses(measurements: Iterable[Measurement]) -> list[str]:
    """Return one line for each measurement that misses its bar."""
    misses = []
    for measurement in measurements:
        miss = measurement.bar.describe_miss(measurement.value) if measurement.bar else None
        if miss is not None:
            misses.append(f"{measurement.name} is {measurement.value:.4g}, {miss}")
    return misses


def format_value(value: float) -> str:
    """Format a number with four significant digits, or all digits before the point.  Example: "1,344", "0.0383"."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
