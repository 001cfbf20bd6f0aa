"""Metrics and completions of a run are read without changing them, and what is damaged is named."""

import json
from pathlib import Path

import pytest

from tests.fakes.run_folders import HOSTILE, write_completions, write_metrics
from trainer.monitoring.run_history import list_sample_steps, read_history, read_samples

pytestmark = pytest.mark.unit


def test_read_history__whole_file__has_series_by_step_and_alarms(tmp_path: Path) -> None:
    alarm = {"event": "alarm", "step": 2, "sign": "truncated", "value": 0.6, "limit": 0.5}
    write_metrics(tmp_path, 3, more=[alarm])
    history = read_history(tmp_path)
    assert history.get_series("update", "reward/mean") == {0: 0.0, 1: 0.1, 2: 0.2}
    assert history.get_series("evaluation", "n") == {0: 64.0, 3: 64.0}
    assert history.get_series("policy", "time") == {}
    assert [(step, values["sign"]) for step, values in history.alarms] == [(2, "truncated")]
    assert history.problems == []


@pytest.mark.parametrize(
    "line",
    [b'{"event": "upd', b"\xff\x00", b"[]", b"7", b'{"event": "update"}', b'{"event": 1, "step": 1}',
     b'{"event": "update", "step": true}', b"[" * 100_000, b'{"step": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_read_history__damaged_line__is_named_and_the_others_are_read(tmp_path: Path, line: bytes) -> None:
    write_metrics(tmp_path, 1)
    file = tmp_path / "metrics.jsonl"
    damaged = file.read_bytes() + line + b"\n\n" + b'{"event": "update", "step": 1, "reward/mean": 0.5}'
    file.write_bytes(damaged)
    history = read_history(tmp_path)
    assert history.get_series("update", "reward/mean") == {0: 0.0, 1: 0.5}
    assert history.problems == ["Line 4 of metrics.jsonl is not an object with an event and a step."]
    assert file.read_bytes() == damaged


@pytest.mark.parametrize("value", ["text", None, True, [1], float("nan"), float("inf"), 10**400])
def test_get_series__value_that_is_not_a_finite_number__is_left_out(tmp_path: Path, value: object) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"event": "update", "step": 0, "reward/mean": value}) + "\n")
    assert read_history(tmp_path).get_series("update", "reward/mean") == {}


def test_read_history__missing_steps_and_many_problems__are_named_and_counted(tmp_path: Path) -> None:
    updates = "".join(json.dumps({"event": "update", "step": step}) + "\n" for step in (0, 2, 3, 7))
    (tmp_path / "metrics.jsonl").write_text(updates)
    assert read_history(tmp_path).problems == [
        "The metrics of step 1 are missing.", "The metrics of steps 4 to 6 are missing."
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("x\n" * 20)
    problems = read_history(tmp_path).problems
    assert (len(problems), problems[-1]) == (9, "There are 12 more problems like these.")


def test_read_history__no_file__is_a_problem(tmp_path: Path) -> None:
    history = read_history(tmp_path)
    assert (history.events, history.problems) == ({}, ["metrics.jsonl cannot be read: No such file or directory."])


def test_read_samples__hostile_and_damaged_lines__are_kept_and_named(tmp_path: Path) -> None:
    write_completions(tmp_path, 4, HOSTILE)
    file = tmp_path / "rollouts" / "4.jsonl"
    first = json.loads(file.read_text().splitlines()[0])
    wrong = [first | {"reward": "1"}, first | {"question": None}, {"step": 4}]
    file.write_text("".join(json.dumps(line) + "\n" for line in wrong) + file.read_text() + "torn")
    lines, problems = read_samples(tmp_path, 4, 100)
    assert [line.completion for line in lines] == [*HOSTILE]
    assert problems == [f"Line {n} of 4.jsonl is not a completion." for n in (1, 2, 3, 34)]
    assert list_sample_steps(tmp_path) == [4]
    assert len(read_samples(tmp_path, 4, 2)[0]) == 2
