"""Early signs of collapse, as described in the paper (INTELLECT-2, section 3), computed from a run's past steps.

In the paper gradient norm and clip ratio climb slowly, while entropy falls and then rises. The clip ratio of the
decoupled objective with one update per step is always 0. So two distances from the policy that sampled are watched
instead: the fraction of tokens outside the clip range, and the mismatch KL.

Medians of windows that do not overlap are compared, so that a single outlier raises no alarm.
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
"""Names of the watched metrics."""

Series = Mapping[str, Sequence[float]]
"""Values of each watched metric by name, one per step, oldest first. All series have the same length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """One sign of collapse. Example: Alarm(sign="optim/grad_norm", value=0.21, limit=0.16)."""

    sign: str
    """Name of the metric."""
    value: float
    """Newest median of the metric."""
    limit: float
    """Limit that the median has reached or exceeded."""


def find_new_alarms(series: Series, settings: AlarmSettings) -> list[Alarm]:
    """Return the signs that are present now but were absent in each of the `window` steps before.

    A sign is therefore reported once, until it has been absent for a whole window.
    """
    before = {
        alarm.sign
        for steps in range(1, settings.window + 1)
        for alarm in find_alarms({name: values[:-steps] for name, values in series.items()}, settings)
    }
    return [alarm for alarm in find_alarms(series, settings) if alarm.sign not in before]


def find_alarms(series: Series, settings: AlarmSettings) -> list[Alarm]:
    """Return the signs that are present at the newest step."""
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
    """Return the medians of adjacent windows. The last window ends with the newest value.

    Values left over at the start, where learning begins, are ignored.
    """
    first = len(values) % window
    return [median(values[start : start + window]) for start in range(first, len(values), window)]


def compute_climb_limit(medians: Sequence[float], *, climb: float, least: float) -> float | None:
    """Return the limit from which the newest median counts as a climb. None if there is no earlier median."""
    return max(least, climb * min(medians[:-1])) if len(medians) > 1 else None


def compute_rise_limit(medians: Sequence[float], *, fall: float, rise: float) -> float | None:
    """Return the limit from which the newest median counts as a rise after a fall. None if there was no fall."""
    if len(medians) < 3:
        return None
    lowest = min(medians[:-1])
    highest = max(medians[: medians.index(lowest) + 1])
    return (1 + rise) * lowest if lowest <= (1 - fall) * highest else None
