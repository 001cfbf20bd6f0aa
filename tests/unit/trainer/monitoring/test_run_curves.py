"""Curves of a run: their points, intervals and tables."""

from pathlib import Path

import pytest

from covey.reporting.html import PlotPoint, PlotSeries
from tests.fakes.run_folders import write_metrics
from trainer.monitoring.metric_names import METRICS
from trainer.monitoring.run_curves import CURVES, compute_interval, list_curves, tabulate, thin_out
from trainer.monitoring.run_history import read_history

pytestmark = pytest.mark.unit


def test_curves__metrics__are_those_that_trainers_write() -> None:
    named = {metric for curve in CURVES for event, metric in curve.metrics.values() if event == "update"}
    assert named <= {*METRICS["update"]}
    assert {"policy/loss", "policy/kl", "policy/entropy", "optim/grad_norm"} <= named


def test_list_curves__length_penalty_and_lenient_score__are_series_of_their_own(tmp_path: Path) -> None:
    lines = [
        {"event": "update", "step": 7, "reward/task": 0.5, "reward/mean": 0.4, "reward/length_penalty": 0.1},
        {"event": "evaluation", "step": 8, "reward": 0.25, "lenient_reward": 0.75, "n": 0},
    ]
    write_metrics(tmp_path, 0, more=lines)
    drawn = {curve.title: curve.series for curve in list_curves(read_history(tmp_path))}
    assert [(one.name, one.points[-1].y) for one in drawn["Reward, with one standard error"]] == [
        ("reward of the task", 0.5), ("with the length penalty", 0.4)
    ]  # fmt: skip
    held_out = drawn["Evaluation on held-out questions, with 95 percent intervals"]
    assert [(one.name, one.points[-1]) for one in held_out] == [
        ("evaluation", PlotPoint(x=8, y=0.25)), ("lenient extraction", PlotPoint(x=8, y=0.75))
    ]  # fmt: skip
    assert len(drawn) == 2  # a curve without points is left out


def test_tabulate__series_with_other_steps__leave_cells_empty() -> None:
    band = PlotSeries(name="a", points=[PlotPoint(x=0, y=1.0, low=0.5, high=2), PlotPoint(x=2, y=1.0)])
    line = PlotSeries(name="b", points=[PlotPoint(x=1, y=3.25)])
    heads, rows, steps = tabulate([band, line], most=9)
    assert heads == ["step", "a", "from", "to", "b"]
    assert rows == [["0", "1", "0.5", "2", ""], ["1", "", "", "", "3.25"], ["2", "1", "", "", ""]]
    assert steps == 3


def test_thin_out__many__keeps_both_ends() -> None:
    assert thin_out(range(1000), 3) == [0, 500, 999]
    assert thin_out([1, 2], 3) == [1, 2]


def test_compute_interval__errors_and_equal_rewards__use_what_is_known() -> None:
    assert compute_interval(0.5, n=64, error=0.1) == pytest.approx((0.304004, 0.695996), abs=1e-6)
    assert compute_interval(1.0, n=10, error=0.0) == pytest.approx((0.722467, 1.0), abs=1e-6)
    assert compute_interval(0.0, n=10, error=None) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert compute_interval(2.5, n=10, error=0.0) is None
    assert compute_interval(0.5, n=0, error=None) is None
