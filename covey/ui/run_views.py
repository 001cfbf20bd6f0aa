"""What a page shows of a run, made of what was read from its files. All functions are pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from covey.environments.answer_extraction import THINK_TAGS
from covey.reporting.html import PlotPoint, PlotSeries
from covey.runtime.flat_tables import flatten
from covey.standalone.manifest import RunManifest
from covey.standalone.run_settings import spell
from trainer.monitoring.rollout_files import RolloutLine
from trainer.monitoring.run_curves import DrawnCurve, list_curves, tabulate
from trainer.monitoring.run_history import EventValues, RunHistory
from trainer.monitoring.run_page import SettingsTable, split_thinking

MAX_ROWS = 400
"""Maximum number of steps in a table, from which its chart is drawn. More are thinned out."""
UNKNOWN_MODEL = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """A run as a row of the list. Example: RunSummary(name="first", model="tiny", state="running", ...)."""

    name: str
    model: str
    state: str
    """running: a process trains. finished: it has all its steps. stopped: it has not, and no process trains."""
    steps: int
    """Number of steps done, counted from the newest update."""
    of: int | None
    """Number of steps that are set. None: the manifest does not say."""
    reward: float | None
    """Mean reward of the newest update. None before the first."""
    score: float | None
    """Newest mean reward on held-out questions. None if no recent line of the metrics has one."""
    score_step: int | None
    """Step of the policy with that score. None together with `score`."""
    begun: float | None
    """Unix time of the first start, in seconds. None: the manifest does not say."""
    seconds: float | None
    """Seconds from the first start to the newest number, or to now if the run is running. Pauses are included."""


class ChartTable(NamedTuple):
    """A chart with the table from which it is drawn."""

    title: str
    unit: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    has_interval: bool
    """Whether the third and the fourth column are the ends of an interval around the second one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """A run as its page shows it."""

    summary: RunSummary
    charts: Sequence[ChartTable]
    alarms: Sequence[tuple[int, Mapping[str, Any]]]
    """Step and values of each alarm."""
    problems: Sequence[str]
    """What could not be read, one sentence each."""
    settings: Sequence[SettingsTable]
    sample_steps: Sequence[int]
    """Steps whose completions can be read, in ascending order."""


class ShownSample(NamedTuple):
    """A completion as a page shows it."""

    heading: str
    question: str
    thinking: str
    """Text up to the end of the thinking. Empty: there is none."""
    answer: str


class RunNumbers(NamedTuple):
    """The newest numbers of a run, from the end of its metrics. None before the first one of its kind."""

    step: int | None
    reward: float | None
    score_step: int | None
    score: float | None


def find_newest(history: RunHistory) -> RunNumbers:
    """Return the newest reward and score with their steps."""
    rewards, scores = history.get_series("update", "reward/mean"), history.get_series("evaluation", "reward")
    step, scored = max(rewards, default=None), max(scores, default=None)
    return RunNumbers(
        step=max(history.events.get("update", {}), default=None),
        reward=None if step is None else rewards[step],
        score_step=scored,
        score=None if scored is None else scores[scored],
    )


def summarize(
    name: str,
    manifest: RunManifest | None,
    numbers: RunNumbers,
    *,
    is_running: bool,
    written_at: float | None,
    now: float,
) -> RunSummary:
    """Return the row of a run. `written_at` is the Unix time of its newest number in seconds, or None."""
    settings = {} if manifest is None else manifest.settings
    of, begun = settings.get("steps"), None if manifest is None else _read_time(manifest.begun)
    model = flatten(settings).get("model.path")
    done, end = 0 if numbers.step is None else numbers.step + 1, now if is_running else written_at
    steps = of if type(of) is int else None
    is_finished = steps is not None and done >= steps
    return RunSummary(
        name=name,
        model=str(model) if model else "the tiny model" if manifest else UNKNOWN_MODEL,
        state="running" if is_running else "finished" if is_finished else "stopped",
        steps=done,
        of=steps,
        reward=numbers.reward,
        score=numbers.score,
        score_step=numbers.score_step,
        begun=begun,
        seconds=None if begun is None or end is None else max(0.0, end - begun),
    )


def thin(history: RunHistory) -> RunHistory:
    """Return a history with at most MAX_ROWS steps of each event, and the newest one.

    The steps are multiples of a power of two. Runs of different lengths therefore have steps in common, and the points
    of a growing run stay where they are.
    """
    events = {event: _thin_steps(by_step) for event, by_step in history.events.items()}
    most = max((len(by_step) for by_step in history.events.values()), default=0)
    note = [f"The curves have at most {MAX_ROWS} of {most:,} steps."] if most > MAX_ROWS else []
    return replace(history, events=events, problems=[*history.problems, *note])


def list_charts(history: RunHistory) -> list[ChartTable]:
    """Return the charts of one run."""
    return [_build_chart(curve) for curve in list_curves(history)]


def compare_runs(histories: Mapping[str, RunHistory]) -> list[ChartTable]:
    """Return a chart for each metric of the curves, with a line for each run that has it."""
    lines: dict[tuple[str, str, str], list[PlotSeries]] = {}
    for name, history in histories.items():
        for curve in list_curves(history):
            for one in curve.series:
                points = [PlotPoint(x=point.x, y=point.y) for point in one.points]
                key = (curve.title.partition(", with ")[0], one.name, curve.unit)
                lines.setdefault(key, []).append(PlotSeries(name=name, points=points))
    return [
        _build_chart(DrawnCurve(f"{title}: {label}", unit, series)) for (title, label, unit), series in lines.items()
    ]


def find_setting_differences(settings: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the settings that differ between runs: the name, and the value of each run. A missing one is "null"."""
    flat = {name: flatten(values) for name, values in settings.items()}
    names = sorted({key for values in flat.values() for key in values})
    rows = [(key, [spell(values.get(key)) for values in flat.values()]) for key in names]
    return [(key, values) for key, values in rows if len({*values}) > 1]


def show_sample(line: RolloutLine, tags: tuple[str, str] = THINK_TAGS) -> ShownSample:
    """Return a completion with its reward, the parts of the reward, and its thinking apart."""
    task = line.reward - line.length_penalty
    parts = f" (task {task:.3f}, length {line.length_penalty:+.3f})" if line.length_penalty else ""
    cut = "" if line.finished else ", cut at the limit"
    thinking, answer = split_thinking(line.completion, tags)
    return ShownSample(
        heading=f"Task {line.task}.{line.group}.{line.sibling}: reward {line.reward:.3f}{parts}, "
        f"advantage {line.advantage:+.3f}, {line.tokens} tokens{cut}, policy {line.policy}",
        question=line.question,
        thinking=thinking,
        answer=answer,
    )


def _build_chart(curve: DrawnCurve) -> ChartTable:
    heads, rows, _ = tabulate(curve.series, most=MAX_ROWS)
    has_interval = any(point.low is not None for point in curve.series[0].points)
    return ChartTable(curve.title, curve.unit, heads, rows, has_interval)


def _thin_steps(by_step: Mapping[int, EventValues]) -> dict[int, EventValues]:
    stride, newest = 1, max(by_step, default=0)
    while len(by_step) > MAX_ROWS * stride:
        stride *= 2
    return {step: values for step, values in by_step.items() if step % stride == 0 or step == newest}


def _read_time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
