"""Curves of a run: which metrics are drawn together, and their points with intervals. All functions are pure."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import NamedTuple, TypeVar

from covey.reporting.html import PlotPoint, PlotSeries
from trainer.monitoring.run_history import RunHistory

REWARD, EVALUATION = "Reward, with one standard error", "Evaluation on held-out questions, with 95 percent intervals"
"""Titles of the two curves whose first series has intervals."""
Item = TypeVar("Item")
_Z = 1.959963984540054
"""Half width of a 95 percent interval in standard errors."""


class Curve(NamedTuple):
    """A plot of several metrics. Example: Curve("Entropy", "nats", {"entropy": ("update", "policy/entropy")})."""

    title: str
    unit: str
    metrics: Mapping[str, tuple[str, str]]
    """Event and name of each metric by its label."""


class DrawnCurve(NamedTuple):
    """A plot with the points of a run. Example: DrawnCurve("Entropy", "nats", series)."""

    title: str
    unit: str
    series: Sequence[PlotSeries]
    """Series that have points, at least one."""


CURVES = (
    Curve("Loss, mean of the updates", "loss", {"loss": ("update", "policy/loss")}),
    Curve("Completion length, mean", "tokens", {"length": ("update", "batch/completion_tokens")}),
    Curve(
        "Truncated completions, and finished ones without an answer",
        "share",
        {"truncated": ("update", "batch/truncated_share"), "no answer": ("update", "batch/unanswered_share")},
    ),
    Curve("Completions in live groups, which teach something", "share", {"live": ("update", "batch/live_share")}),
    Curve(
        "KL divergence from the policy that sampled, per token",
        "nats",
        {"mismatch KL": ("update", "policy/mismatch_kl")},
    ),
    Curve("KL divergence from the policy of step 0, per token", "nats", {"KL": ("update", "policy/kl")}),
    Curve("Entropy of the policy, per token", "nats", {"entropy": ("update", "policy/entropy")}),
    Curve("Gradient norm before clipping", "norm", {"gradient norm": ("update", "optim/grad_norm")}),
    Curve("Staleness of the completions", "steps", {"staleness": ("update", "staleness_mean")}),
    Curve(
        "Throughput",
        "tokens per second",
        {
            "trained, of the whole step": ("update", "perf/tokens_per_second"),
            "generated": ("generation", "perf/generated_tokens_per_second"),
        },
    ),
    Curve(
        "Utilisation of the learner",
        "share",
        {"waiting for the batch": ("update", "trainer/idle_ratio"), "of peak FLOPS": ("update", "perf/mfu")},
    ),
    Curve(
        "Time of a step",
        "seconds",
        {
            "waiting for the batch": ("update", "time/wait_for_batch"),
            "updates": ("update", "time/update"),
            "saving": ("update", "time/save"),
        },
    ),
)


def list_curves(history: RunHistory) -> list[DrawnCurve]:
    """Return the curves of a run that have points: the reward, the evaluations, and those of `CURVES`."""
    drawn = [
        DrawnCurve(REWARD, "reward", _list_rewards(history)),
        DrawnCurve(EVALUATION, "mean reward", _list_evaluations(history)),
    ]
    for curve in CURVES:
        series = [_get_series(history, *metric, label=label) for label, metric in curve.metrics.items()]
        drawn.append(DrawnCurve(curve.title, curve.unit, series))
    filled = [curve._replace(series=[one for one in curve.series if one.points]) for curve in drawn]
    return [curve for curve in filled if curve.series]


def tabulate(series: Sequence[PlotSeries], *, most: int) -> tuple[list[str], list[list[str]], int]:
    """Return heads and rows of a table with one row per step, and the number of steps. More than `most` are thinned.

    A series with intervals has the two columns "from" and "to" after its own.
    """
    heads, columns = ["step"], list[dict[float, str]]()
    for one in series:
        heads.append(one.name)
        columns.append({point.x: f"{point.y:.5g}" for point in one.points})
        if any(point.low is not None for point in one.points):
            heads += ["from", "to"]
            columns.append({point.x: f"{point.low:.5g}" for point in one.points if point.low is not None})
            columns.append({point.x: f"{point.high:.5g}" for point in one.points if point.high is not None})
    steps = sorted({step for column in columns for step in column})
    rows = [[f"{step:.0f}", *(column.get(step, "") for column in columns)] for step in thin_out(steps, most)]
    return heads, rows, len(steps)


def thin_out(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` items, spread evenly, with the first and the last."""
    if len(items) <= most:
        return [*items]
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]


def list_scores(history: RunHistory) -> list[PlotPoint]:
    """Return the mean rewards on held-out questions, with 95 percent intervals."""
    errors, counts = history.get_series("evaluation", "standard_error"), history.get_series("evaluation", "n")
    points = []
    for step, reward in history.get_series("evaluation", "reward").items():
        interval = compute_interval(reward, n=counts.get(step, 0), error=errors.get(step))
        low, high = interval or (None, None)
        points.append(PlotPoint(x=step, y=reward, low=low, high=high))
    return points


def compute_interval(reward: float, *, n: float, error: float | None) -> tuple[float, float] | None:
    """Return the 95 percent interval of a mean reward, or None if nothing is known of its spread.

    It is that of the standard error. Without one, or if all rewards were equal, it is Wilson's interval for `n` rewards
    of 0 or 1, which is too wide for rewards in between.
    """
    if error:
        return reward - _Z * error, reward + _Z * error
    if n < 1 or not 0 <= reward <= 1:
        return None
    middle = (reward + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * sqrt(reward * (1 - reward) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def _list_rewards(history: RunHistory) -> list[PlotSeries]:
    """Return the task's reward with its band and, if lengths cost anything, the reward that was learned from."""
    errors, counts = history.get_series("update", "reward/task_std"), history.get_series("update", "batch/samples")
    tasks = history.get_series("update", "reward/task") or history.get_series("update", "reward/mean")
    points = []
    for step, reward in tasks.items():
        error = errors[step] / sqrt(counts[step]) if step in errors and counts.get(step, 0) >= 1 else None
        low, high = (None, None) if error is None else (reward - error, reward + error)
        points.append(PlotPoint(x=step, y=reward, low=low, high=high))
    series = [PlotSeries(name="reward of the task", points=points)]
    if any(history.get_series("update", "reward/length_penalty").values()):
        series.append(_get_series(history, "update", "reward/mean", label="with the length penalty"))
    return series


def _list_evaluations(history: RunHistory) -> list[PlotSeries]:
    lenient = _get_series(history, "evaluation", "lenient_reward", label="lenient extraction")
    return [PlotSeries(name="evaluation", points=list_scores(history)), lenient]


def _get_series(history: RunHistory, event: str, name: str, *, label: str) -> PlotSeries:
    points = [PlotPoint(x=x, y=y) for x, y in history.get_series(event, name).items()]
    return PlotSeries(name=label, points=points)
