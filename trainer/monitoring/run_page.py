"""The report of a run as one HTML page: summary, alarms, curves with their numbers, completions and settings.

All functions are pure. Texts of the model reach the page only through `covey.reporting.html`, which escapes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from trainer.monitoring.run_curves import DrawnCurve, list_curves, list_scores, tabulate, thin_out
from trainer.monitoring.run_history import RunHistory

MAX_POINTS, MAX_ROWS = 1000, 200
"""Maximum number of steps in a plot and in its table. More are thinned out evenly."""


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
    scores = list_scores(history)
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
    for curve in list_curves(history):
        yield from _build_curve(curve, marks)
    if marks:
        yield build_note("Dashed lines mark alarms.")


def _build_curve(curve: DrawnCurve, marks: Sequence[PlotMark]) -> Iterator[Markup]:
    """Yield a plot and, folded, its numbers."""
    shown = [PlotSeries(name=one.name, points=thin_out(one.points, MAX_POINTS)) for one in curve.series]
    yield build_line_plot(shown, title=curve.title, x_label="step", y_label=curve.unit, marks=marks)
    heads, rows, steps = tabulate(curve.series, most=MAX_ROWS)
    thinned = f", {len(rows)} of {steps} steps" if len(rows) < steps else ""
    yield build_details(f"Numbers{thinned}", [build_table(heads, rows, texts=0)])


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


def _show(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
