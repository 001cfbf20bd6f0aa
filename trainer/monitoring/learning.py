"""Signs that a run cannot learn, computed from the metrics of its newest steps (docs/decisions/055-dead-runs.md).

A step is dead if it cannot have moved the policy towards more reward: no group was live, or the gradient was exactly
zero. Both functions of the steps are pure. `metrics.TrainingMetrics` applies them.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from covey.protocol.learning_signs import LearningSign
from trainer.config import AlarmSettings
from trainer.monitoring.alarms import GRADIENT_NORM, Alarm

Update = Mapping[str, float | int | str]
"""Metrics of one update, with the names in `METRICS`."""
LIVE_SHARE = "batch/live_share"
ZEROS = {
    LearningSign.CONSTANT_REWARD: "reward/task_std",
    LearningSign.NO_LIVE_GROUP: LIVE_SHARE,
    LearningSign.ZERO_GRADIENT: GRADIENT_NORM,
}
"""Metrics that are never negative, by the sign that is present while they are zero."""


def find_signs(updates: Sequence[Update], settings: AlarmSettings) -> list[Alarm]:
    """Return the signs that are present in the newest `settings.steps` updates, oldest first.

    A sign is present if the mean of its metric over these updates is zero or, for a share, larger than its limit. No
    sign is present before there are that many updates, or while one of them lacks the metric.
    """
    shares = {
        LearningSign.TRUNCATED: ("batch/truncated_share", settings.truncated_most),
        LearningSign.NO_ANSWER: ("batch/unanswered_share", settings.unanswered_most),
    }
    rules = shares | {sign: (metric, 0.0) for sign, metric in ZEROS.items()}
    found = []
    for sign in LearningSign:
        metric, limit = rules[sign]
        values = [float(update[metric]) for update in updates[-settings.steps :] if metric in update]
        if len(values) < settings.steps:
            continue
        mean = fmean(values)
        if mean > limit if sign in shares else mean == 0:
            found.append(Alarm(sign=sign, value=mean, limit=limit))
    return found


def find_new_signs(updates: Sequence[Update], settings: AlarmSettings) -> list[Alarm]:
    """Return the signs that are present now but were absent one step before."""
    before = {alarm.sign for alarm in find_signs(updates[:-1], settings)}
    return [alarm for alarm in find_signs(updates, settings) if alarm.sign not in before]


def is_dead(update: Update) -> bool:
    """Return whether a step is dead. A step of a release without these metrics is not."""
    return 0 in (update.get(LIVE_SHARE), update.get(GRADIENT_NORM))


def count_dead(updates: Sequence[Update]) -> int:
    """Return the number of dead steps since the newest one that is not dead."""
    return next((i for i, update in enumerate(reversed(updates)) if not is_dead(update)), len(updates))
