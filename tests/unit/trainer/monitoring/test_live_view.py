"""The trainer's output, on a terminal and in a file."""

import io
import re
import sys

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from trainer.monitoring.live_view import format_line, show_training

pytestmark = pytest.mark.unit

UPDATE = {
    "reward/mean": 0.53125, "batch/live_share": 0.5, "batch/truncated_share": 0.03125,
    "policy/entropy": 0.4118, "policy/outside_clip": 0.00096, "optim/grad_norm": 0.08123,
    "staleness_mean": 0.5, "perf/tokens_per_second": 12345.6, "trainer/idle_ratio": 0.314, "batch/tokens": 7,
}  # fmt: skip
LINE = (
    "step   12  reward 0.531  live 50%  truncated 3%  entropy 0.412  outside 0.0010  norm 0.0812  staleness 0.50  "
    "tokens/s 12,346  idle 31%"
)


def test_format_line__update__is_the_main_numbers() -> None:
    assert format_line("update", 12, UPDATE) == LINE
    assert format_line("update", 12, {"reward/mean": 1.0}) == "step   12  reward 1.000"


def test_format_line__evaluation__names_the_number_of_completions() -> None:
    line = format_line("evaluation", 3, {"reward": 0.6125, "n": 512})
    assert line == "step    3  evaluation: mean reward 0.613 of 512 held-out completions"


def test_show_training__a_file__gets_nothing_and_the_log_gets_the_lines() -> None:
    out = io.StringIO()
    with capture_logs() as logs, show_training(Console(file=out), steps=4) as sink:
        sink("policy", 0, {"time": 1.0})
        sink("update", 0, UPDATE)
    assert out.getvalue() == ""
    assert [(log["event"], log["step"], log["reward/mean"]) for log in logs] == [("step trained", 0, 0.5312)]


def test_show_training__a_terminal__has_one_line_per_step_and_a_bar_of_policies() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160)
    with capture_logs() as logs, show_training(console, steps=4) as sink:
        sink("policy", 0, {"time": 1.0})
        sink("update", 12, UPDATE)
        sink("alarm", 12, {"sign": "policy/entropy"})
        sink("evaluation", 12, {"reward": 0.5, "n": 4})
        sink("policy", 3, {"time": 2.0})
    shown = out.getvalue()
    assert shown.count(LINE) == 1
    assert shown.count("evaluation: mean reward 0.500") == 1
    assert "alarm" not in shown
    assert "policy 3 published" in shown
    assert "3/4" in shown
    assert logs == []


def test_show_training__run_without_published_policies__advances_at_updates_and_shows_the_time_left() -> None:
    out = io.StringIO()
    with show_training(Console(file=out, force_terminal=True, width=160), steps=9, advances_at="update") as sink:
        sink("evaluation", 4, {"reward": 0.25, "n": 4})
        sink("generation", 4, {"time/generate": 1.0})
        sink("update", 4, UPDATE)  # the first step of a resumed run
        assert "left" in out.getvalue()
        sink("update", 5, UPDATE | {"reward/mean": 0.75})
    last = out.getvalue().rpartition("reward 0.750, evaluation 0.250 at step 4")[2]
    assert "6/9" in last
    assert re.search(r"left\S* \S*0:00:0\d", last)  # estimated from the second update alone
    assert "-:--:--" not in last


def test_show_training__run_without_an_end__shows_no_time_left() -> None:
    out = io.StringIO()
    with show_training(Console(file=out, force_terminal=True, width=160), steps=None) as sink:
        sink("policy", 3, {"time": 2.0})
    assert "left" not in out.getvalue()


def test_show_training__an_error__restores_the_streams() -> None:
    before = sys.stdout, sys.stderr
    console = Console(file=io.StringIO(), force_terminal=True)

    def stop_in_the_middle() -> None:
        with show_training(console, steps=None) as sink:
            sink("update", 12, UPDATE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_in_the_middle()
    assert (sys.stdout, sys.stderr) == before
