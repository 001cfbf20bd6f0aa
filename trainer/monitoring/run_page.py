"""The report of a run as one HTML page: summary, alarms, curves with their numbers, completions and settings.

All functions are pure. Texts of the model reach the page only through `covey.reporting.html`, which escapes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple, TypeVar

from covey.environments.answer_extraction import THINK_TAGS
from covey.reporting.html import (
    Markup,
    PlotMark,
    PlotPoint,
    PlotSeries,
    build_details,
    build_heading,
    build_line_plot,
    build_note,
    build_page,
    build_table,
    build_text,
)
from trainer.monitoring.rollout_files import RolloutLine
from trainer.monitoring.run_history import RunHistory

MAX_POINTS, MAX_ROWS = 1000, 200
"""Maximum number of steps in a plot and in its table. More are thinned out evenly."""
Item = TypeVar("Item")
_Z = 1.959963984540054
"""Half width of a 95 percent interval in standard errors."""


class Curve(NamedTuple):
    """A plot of several metrics. Example: Curve("Entropy", "nats", {"entropy": ("update", "policy/entropy")})."""

    title: str
    unit: str
    metrics: Mapping[str, tuple[str, str]]
    """Event and name of each metric by its label."""


CURVES = (
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledStep:
    """Completions of one step. Example: SampledStep(step=40, lines=lines)."""

    step: int
    lines: Sequence[RolloutLine]


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsTable:
    """Names and values of settings. Example: SettingsTable(title="Packages", rows=[("torch", "2.13.0")])."""

    title: str
    rows: Sequence[tuple[str, str]]


def build_run_page(
    title: str,
    history: RunHistory,
    samples: Sequence[SampledStep],
    settings: Sequence[SettingsTable],
    *,
    problems: Sequence[str] = (),
    tags: tuple[str, str] = THINK_TAGS,
) -> str:
    """Return the page. `tags` enclose the thinking part of a completion, which is folded."""
    problems = [*history.problems, *problems]
    blocks = [_build_summary(history)]
    if problems:
        blocks += [build_heading("Damaged or missing lines"), *(build_note(problem) for problem in problems)]
    if history.alarms:
        blocks += [build_heading("Alarms"), _build_alarms(history)]
    blocks += [build_heading("Curves"), *_build_curves(history)]
    for sampled in samples:
        blocks.append(build_heading(f"Completions of step {sampled.step}"))
        blocks += [_build_sample(line, tags) for line in sampled.lines]
    if settings:
        blocks.append(build_heading("Settings"))
        blocks += [build_details(each.title, [build_table(["name", "value"], each.rows, texts=2)]) for each in settings]
    return build_page(title, blocks)


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


def _build_summary(history: RunHistory) -> Markup:
    steps = history.get_series("update", "reward/mean")
    seconds = history.get_series("update", "time/step")
    rows = [("trained steps", str(len(steps)))]
    if steps:
        first, last = min(steps), max(steps)
        rows += [("reward, step by step", f"{steps[first]:.3f} (step {first}) to {steps[last]:.3f} (step {last})")]
    if seconds:
        rows.append(
            ("time of steps", f"{sum(seconds.values()):,.0f} s, {sum(seconds.values()) / len(seconds):.1f} s each")
        )
    scores = _list_scores(history)
    for label, point in (("first evaluation", scores[:1]), ("newest evaluation", scores[1:][-1:])):
        rows += [(label, f"{each.y:.3f}{_show_interval(each)} (policy {each.x:.0f})") for each in point]
    pauses = history.events.get("pause", {})
    rows.append(("alarms", str(len(history.alarms))))
    if pauses:
        rows.append(("pauses", ", ".join(f"after step {step}" for step in pauses)))
    return build_table(["", ""], rows, texts=2)


def _show_interval(point: PlotPoint) -> str:
    return "" if point.low is None else f", 95 percent interval {point.low:.3f} to {point.high:.3f}"


def _build_alarms(history: RunHistory) -> Markup:
    rows = [
        (str(step), *(_show(values.get(name, "")) for name in ("sign", "value", "limit", "advice")))
        for step, values in history.alarms
    ]
    return build_table(["step", "sign", "value", "limit", "advice"], rows, texts=5)


def _build_curves(history: RunHistory) -> Iterator[Markup]:
    marks = [PlotMark(x=step, label=f"step {step}: alarm {values.get('sign', '')}") for step, values in history.alarms]
    yield from _build_curve("Reward, with one standard error", "reward", _list_rewards(history), marks)
    evaluations = [PlotSeries(name="evaluation", points=_list_scores(history))]
    title = "Evaluation on held-out questions, with 95 percent intervals"
    yield from _build_curve(title, "mean reward", evaluations, marks)
    for curve in CURVES:
        series = [
            PlotSeries(name=label, points=[PlotPoint(x=x, y=y) for x, y in history.get_series(event, name).items()])
            for label, (event, name) in curve.metrics.items()
        ]
        yield from _build_curve(curve.title, curve.unit, series, marks)
    if marks:
        yield build_note("Dashed lines mark alarms.")


def _build_curve(title: str, unit: str, series: Sequence[PlotSeries], marks: Sequence[PlotMark]) -> Iterator[Markup]:
    """Yield a plot and, folded, its numbers. Nothing if there are no numbers."""
    series = [one for one in series if one.points]
    if not series:
        return
    shown = [PlotSeries(name=one.name, points=_thin_out(one.points, MAX_POINTS)) for one in series]
    yield build_line_plot(shown, title=title, x_label="step", y_label=unit, marks=marks)
    heads, columns = ["step"], list[dict[float, str]]()
    for one in series:
        heads.append(one.name)
        columns.append({point.x: f"{point.y:.5g}" for point in one.points})
        if any(point.low is not None for point in one.points):
            heads += ["from", "to"]
            columns.append({point.x: f"{point.low:.5g}" for point in one.points if point.low is not None})
            columns.append({point.x: f"{point.high:.5g}" for point in one.points if point.high is not None})
    steps = sorted({step for column in columns for step in column})
    rows = [[f"{step:.0f}", *(column.get(step, "") for column in columns)] for step in _thin_out(steps, MAX_ROWS)]
    thinned = f", {len(rows)} of {len(steps)} steps" if len(rows) < len(steps) else ""
    yield build_details(f"Numbers{thinned}", [build_table(heads, rows, texts=0)])


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
        whole = history.get_series("update", "reward/mean")
        series.append(
            PlotSeries(name="with the length penalty", points=[PlotPoint(x=x, y=y) for x, y in whole.items()])
        )
    return series


def _list_scores(history: RunHistory) -> list[PlotPoint]:
    errors, counts = history.get_series("evaluation", "standard_error"), history.get_series("evaluation", "n")
    points = []
    for step, reward in history.get_series("evaluation", "reward").items():
        interval = compute_interval(reward, n=counts.get(step, 0), error=errors.get(step))
        low, high = interval or (None, None)
        points.append(PlotPoint(x=step, y=reward, low=low, high=high))
    return points


def _build_sample(line: RolloutLine, tags: tuple[str, str]) -> Markup:
    cut = "" if line.finished else ", cut at the token limit"
    penalty = f", length penalty {line.length_penalty:+.3f}" if line.length_penalty else ""
    summary = (
        f"Task {line.task}.{line.group}.{line.sibling}: reward {line.reward:.3f}{penalty}, "
        f"advantage {line.advantage:+.3f}, {line.tokens} tokens{cut}, policy {line.policy}"
    )
    thinking, answer = split_thinking(line.completion, tags)
    folded = [build_details(f"Thinking, {len(thinking):,} characters", [build_text(thinking)])] if thinking else []
    parts = [build_note("Question"), build_text(line.question), build_note("Completion"), *folded, build_text(answer)]
    return build_details(summary, parts)


def split_thinking(text: str, tags: tuple[str, str]) -> tuple[str, str]:
    """Return the thinking part with its tags, and the answer. All is thinking if it was opened and not closed."""
    head, closing, answer = text.rpartition(tags[1])
    if tags[0] in answer:
        return text, ""
    return head + closing, answer.lstrip("\n") if closing else answer


def _thin_out(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` items, spread evenly, with the first and the last."""
    if len(items) <= most:
        return [*items]
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]


def _show(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
