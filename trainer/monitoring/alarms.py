"""The early signs of collapse that the paper saw (INTELLECT-2, section 3), as functions of a run's past steps.

Gradient norm and clip ratio climb slowly; entropy falls, then rises.  The clip ratio of the decoupled objective with
one update per step is 0 whatever happens, so what is watched are the distances from the policy that sampled: the share
of tokens outside the clip range and the mismatch KL.  Called by `metrics` after each step.  A series is compared by
medians of windows that do not overlap, so one odd step raises nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from trainer.config import AlarmSettings

GRADIENT_NORM, OUTSIDE_CLIP, MISMATCH_KL, ENTROPY = SIGNS = (
    "optim/grad_norm",
    "policy/outside_clip",
    "policy/mismatch_kl",
    "policy/entropy",
)
"""Names of the metrics that are watched."""

Series = Mapping[str, Sequence[float]]
"""By name of SIGNS: one value a step, oldest first, equally many of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """One sign.  Example: Alarm(sign="optim/grad_norm", value=0.21, limit=0.16)."""

    sign: str
    """Name of the metric."""
    value: float
    """Its newest median."""
    limit: float
    """What the median is at or above."""


def find_new_alarms(series: Series, settings: AlarmSettings) -> list[Alarm]:
    """Signs that stand now and stood at none of the `window` steps before: each is told once until it clears."""
    before = {
        alarm.sign
        for steps in range(1, settings.window + 1)
        for alarm in find_alarms({name: values[:-steps] for name, values in series.items()}, settings)
    }
    return [alarm for alarm in find_alarms(series, settings) if alarm.sign not in before]


def find_alarms(series: Series, settings: AlarmSettings) -> list[Alarm]:
    """Signs that stand at the newest step."""
    medians = {name: compute_medians(values, settings.window) for name, values in series.items()}
    outside_clip = compute_climb_limit(
        medians[OUTSIDE_CLIP], climb=settings.outside_clip_climb, least=settings.outside_clip_least
    )
    limits = {
        GRADIENT_NORM: compute_climb_limit(medians[GRADIENT_NORM], climb=settings.gradient_norm_climb, least=0.0),
        OUTSIDE_CLIP: None if outside_clip is None else min(outside_clip, settings.outside_clip_most),
        MISMATCH_KL: compute_climb_limit(
            medians[MISMATCH_KL], climb=settings.mismatch_kl_climb, least=settings.mismatch_kl_least
        ),
        ENTROPY: compute_rise_limit(medians[ENTROPY], fall=settings.entropy_fall, rise=settings.entropy_rise),
    }
    return [
        Alarm(sign=sign, value=medians[sign][-1], limit=limit)
        for sign, limit in limits.items()
        if limit is not None and medians[sign][-1] >= limit
    ]


def compute_medians(values: Sequence[float], window: int) -> list[float]:
    """Medians of windows side by side, the last one ending with the newest value; what is left over at the start,
    where learning begins, is in none."""
    first = len(values) % window
    return [median(values[start : start + window]) for start in range(first, len(values), window)]


def compute_climb_limit(medians: Sequence[float], *, climb: float, least: float) -> float | None:
    """From where on the newest median counts as climbed; None: there is nothing to compare it with."""
    return max(least, climb * min(medians[:-1])) if len(medians) > 1 else None


def compute_rise_limit(medians: Sequence[float], *, fall: float, rise: float) -> float | None:
    """From where on the newest median counts as risen again; None while there was no fall."""
    if len(medians) < 3:
        return None
    lowest = min(medians[:-1])
    highest = max(medians[: medians.index(lowest) + 1])
    return (1 + rise) * lowest if lowest <= (1 - fall) * highest else None
