"""What pages show of runs, of values worked out by hand."""

from typing import Any

import pytest

from covey.standalone.manifest import RunMachine, RunManifest
from covey.ui import run_views
from covey.ui.run_views import (
    RunNumbers,
    compare_runs,
    find_newest,
    find_setting_differences,
    list_charts,
    show_sample,
    summarize,
    thin,
)
from trainer.monitoring.rollout_files import RolloutLine
from trainer.monitoring.run_history import RunHistory

pytestmark = pytest.mark.unit
NONE = RunNumbers(None, None, None, None)
MACHINE = RunMachine(commit=None, python="3.11", packages={}, system="Linux", device="cpu", processes=1)


def make_history(rewards: dict[int, float], **events: Any) -> RunHistory:
    updates = {step: {"reward/mean": reward} for step, reward in rewards.items()}
    return RunHistory(events={"update": updates, **events}, alarms=[])


def make_manifest(**settings: Any) -> RunManifest:
    begun = "2026-11-28T12:00:00+00:00"
    return RunManifest(begun=begun, command="covey train", machine=MACHINE, settings=settings, params={}, data=())


def test_find_newest__numbers__are_of_the_highest_steps():
    history = make_history({3: 0.5, 4: 0.25}, evaluation={0: {"reward": 0.1}, 4: {"reward": 0.75}})
    assert find_newest(history) == RunNumbers(step=4, reward=0.25, score_step=4, score=0.75)
    assert find_newest(make_history({})) == NONE


@pytest.mark.parametrize(
    ("step", "is_running", "state", "done", "seconds"),
    [(None, True, "running", 0, 100.0), (3, False, "finished", 4, 60.0), (2, False, "stopped", 3, 60.0),
     (3, True, "running", 4, 100.0)],
)  # fmt: skip
def test_summarize__steps_and_lock__are_the_state(
    step: int | None, is_running: bool, state: str, done: int, seconds: float
):
    begun = 1_795_867_200.0  # date -u -d 2026-11-28T12:00 +%s
    manifest = make_manifest(steps=4, model={"path": "Qwen/Qwen3-0.6B"})
    numbers = NONE._replace(step=step)
    row = summarize("a", manifest, numbers, is_running=is_running, written_at=begun + 60, now=begun + 100)
    assert (row.state, row.steps, row.of, row.seconds) == (state, done, 4, seconds)
    assert (row.model, row.begun) == ("Qwen/Qwen3-0.6B", begun)


@pytest.mark.parametrize("settings", [{}, {"steps": "4", "model": None}, {"steps": True, "model": {"path": None}}])
def test_summarize__damaged_settings__are_unknown(settings: dict[str, Any]):
    manifest = make_manifest(**settings).model_copy(update={"begun": "yesterday"})
    row = summarize("a", manifest, NONE, is_running=False, written_at=None, now=0.0)
    assert (row.model, row.of, row.begun, row.seconds, row.state) == ("the tiny model", None, None, None, "stopped")
    assert summarize("a", None, NONE, is_running=False, written_at=None, now=0.0).model == "unknown"


def test_list_charts__reward__has_its_interval_in_the_columns_that_the_script_reads():
    step = {"reward/mean": 0.5, "reward/task": 0.5, "reward/task_std": 0.4, "batch/samples": 16}
    (chart,) = list_charts(RunHistory(events={"update": {0: step}}, alarms=[]))
    assert (chart.heads, chart.rows) == (["step", "reward of the task", "from", "to"], [["0", "0.5", "0.4", "0.6"]])
    assert chart.has_interval


def test_compare_runs__each_metric__has_a_line_per_run_that_has_it():
    first = make_history({0: 0.0, 1: 0.5}, evaluation={0: {"reward": 0.25, "n": 64}})
    charts = compare_runs({"a": first, "b": make_history({1: 1.0})})
    assert [(chart.title, chart.heads, chart.has_interval) for chart in charts] == [
        ("Reward: reward of the task", ["step", "a", "b"], False),
        ("Evaluation on held-out questions: evaluation", ["step", "a"], False),
    ]
    assert charts[0].rows == [["0", "0", ""], ["1", "0.5", "1"]]


def test_thin__long_run__has_multiples_of_a_power_of_two_and_the_newest_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_views, "MAX_ROWS", 3)
    history = thin(make_history(dict.fromkeys(range(10), 0.5), evaluation={7: {"reward": 0.25}}))
    assert [*history.events["update"]] == [0, 4, 8, 9]
    assert [*history.events["evaluation"]] == [7]
    assert history.problems == ["The curves have at most 3 of 10 steps."]
    assert thin(make_history({0: 0.5, 1: 0.5, 2: 0.5})).problems == []


def test_find_setting_differences__runs__are_compared_by_name():
    settings = {"a": {"seed": 1, "optim": {"lr": 1e-6}}, "b": {"seed": 1, "optim": {"lr": 2e-6}, "new": "x"}}
    assert find_setting_differences(settings) == [("new", ["null", "x"]), ("optim.lr", ["1e-06", "2e-06"])]


def test_show_sample__reward__has_its_parts_and_the_thinking_is_apart():
    line = RolloutLine(
        step=3, policy=2, task=7, group=0, sibling=1, question="q", completion="<think>t</think>a", reward=0.7,
        length_penalty=-0.1, advantage=0.5, finished=False, tokens=12,
    )  # fmt: skip
    shown = show_sample(line)
    assert shown.heading == (
        "Task 7.0.1: reward 0.700 (task 0.800, length -0.100), advantage +0.500, 12 tokens, cut at the limit, policy 2"
    )
    assert (shown.question, shown.thinking, shown.answer) == ("q", "<think>t</think>", "a")
