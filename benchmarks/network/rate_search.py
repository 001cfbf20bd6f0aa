"""A search for the highest rate at which a machine is idle for a share of its time. No clock and no processes."""

from dataclasses import dataclass, field
from typing import NamedTuple


class RateStep(NamedTuple):
    """What was measured while one target rate was kept. Example: RateStep(55.0, 54.2, 0.31)."""

    target: float
    """Rate that was asked for, in 1/s."""
    achieved: float
    """Rate that was reached, in 1/s."""
    idle: float
    """Share of the time of all cores in which they were idle, from 0 to 1."""


@dataclass
class RateSearch:
    """Example: `search.note(achieved=54.2, idle=0.31)` returns the next target rate."""

    rate: float
    """Target rate now, in 1/s."""
    least_idle: float
    """Share of idle time that a rate must leave."""
    steps: list[RateStep] = field(default_factory=list)

    def note(self, *, achieved: float, idle: float) -> float:
        """Record a step and return the next target: a tenth more, or a tenth less if too little was idle or reached.

        After the first step that failed, the target changes by 4 percent only.
        """
        step = RateStep(self.rate, achieved, idle)
        has_failed = any(not self.is_kept(each) for each in self.steps)
        self.steps.append(step)
        factor = 1.04 if has_failed else 1.1
        self.rate = self.rate * factor if self.is_kept(step) else self.rate / 1.1
        return self.rate

    def is_kept(self, step: RateStep) -> bool:
        """Return whether a step left enough idle time and reached nine tenths of its target."""
        return step.idle >= self.least_idle and step.achieved >= 0.9 * step.target

    def find_best(self) -> RateStep | None:
        """Return the step with the highest rate among those that were kept. None if there is none."""
        return max((step for step in self.steps if self.is_kept(step)), key=lambda step: step.achieved, default=None)


class CpuSample(NamedTuple):
    """Time of all cores since the system started, in clock ticks, as `/proc/stat` counts it."""

    idle: int
    total: int

    def compute_idle_share(self, later: "CpuSample") -> float:
        """Return the share of idle time between this sample and a later one. 0 if no time has passed."""
        total = later.total - self.total
        return (later.idle - self.idle) / total if total else 0.0


def parse_cpu(text: str) -> CpuSample:
    """Return the sample in the text of `/proc/stat`. Waiting for a disk counts as idle."""
    fields = [int(each) for each in text.split("\n", 1)[0].split()[1:9]]
    return CpuSample(idle=fields[3] + fields[4], total=sum(fields))
