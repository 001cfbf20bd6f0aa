"""Lines of metrics are complete, and each is written once."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from covey.protocol.learning_signs import LearningSign
from covey.runtime.files import append
from trainer.config import AlarmSettings
from trainer.monitoring.metrics import TrainingMetrics, log_line

pytestmark = pytest.mark.unit


def test_record__new_event__is_one_line(tmp_path: Path) -> None:
    metrics = TrainingMetrics(tmp_path / "metrics.jsonl")
    metrics.record("evaluation", 3, {"reward": 0.5, "n": 512})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"event": "evaluation", "step": 3, "reward": 0.5, "n": 512}\n'


def test_record__same_event_again_and_after_a_restart__stands_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    TrainingMetrics(path).record("policy", 1, {"record_hash": "0x1"})
    again = TrainingMetrics(path)
    assert again.has("policy", 1)
    assert not again.has("policy", 2)
    again.record("policy", 1, {"record_hash": "0x2"})
    again.record("update", 1, {"loss": 0.25})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {"event": "policy", "step": 1, "record_hash": "0x1"},
        {"event": "update", "step": 1, "loss": 0.25},
    ]


@pytest.mark.parametrize("torn", ['{"event": "upd', '{"event": "update", "step": 4}'])
def test_metrics__torn_last_line__is_cut_off_and_written_again(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "policy", "step": 0}\n' + torn)
    metrics = TrainingMetrics(path)
    metrics.record("update", 4, {})
    assert path.read_text() == '{"event": "policy", "step": 0}\n{"event": "update", "step": 4}\n'


def test_record__nan__is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        TrainingMetrics(tmp_path / "metrics.jsonl").record("update", 0, {"loss": float("nan")})
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_record__threads_at_once__write_one_after_the_other_and_each_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing: list[int] = []

    def write(path: Path, data: bytes) -> None:
        writing.append(1)
        time.sleep(0.01)
        append(path, data)
        assert writing.pop() == 1
        assert writing == []

    monkeypatch.setattr("trainer.monitoring.metrics.append", write)
    path = tmp_path / "metrics.jsonl"
    metrics = TrainingMetrics(path)
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda i: metrics.record("policy", i // 2, {}), range(8)):
            pass
    assert sorted(json.loads(line)["step"] for line in path.read_text().splitlines()) == [0, 1, 2, 3]


def build_update(norm: float) -> dict[str, float]:
    return {"optim/grad_norm": norm, "policy/outside_clip": 0.0, "policy/mismatch_kl": 0.0, "policy/entropy": 1.0}


RULES = AlarmSettings(window=2)
NORMS = [1.0, 1.0, 1.0, 2.5, 2.5, 2.5, 2.5]
"""With windows of 2 the median is 2.5 at step 4, where 1 was the lowest."""
ALARM = {"event": "alarm", "step": 4, "sign": "optim/grad_norm", "value": 2.5, "limit": 2.0}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_record__sign_of_collapse__is_one_line_before_its_update_and_one_warning(tmp_path: Path) -> None:
    metrics = TrainingMetrics(tmp_path / "metrics.jsonl", alarms=RULES)
    with capture_logs() as logs:
        for step, norm in enumerate(NORMS):
            metrics.record("update", step, build_update(norm))
    lines = read(tmp_path / "metrics.jsonl")
    assert [line for line in lines if line["event"] == "alarm"] == [ALARM]
    assert lines.index(ALARM) == 4
    assert lines[5]["step"] == 4
    assert [(log["log_level"], log["step"], log["sign"]) for log in logs] == [("warning", 4, "optim/grad_norm")]


@pytest.mark.parametrize("restart", range(1, 7))
def test_record__restarted_after_any_step__raises_the_same_alarms(tmp_path: Path, restart: int) -> None:
    path = tmp_path / "metrics.jsonl"
    for start, end in ((0, restart), (restart, len(NORMS))):
        metrics = TrainingMetrics(path, alarms=RULES)
        for step in range(start, end):
            metrics.record("update", step, build_update(NORMS[step]))
    assert [line for line in read(path) if line["event"] == "alarm"] == [ALARM]


def test_record__killed_between_alarm_and_update__repeats_the_update_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = TrainingMetrics(path, alarms=RULES)
    for step, norm in enumerate(NORMS[:5]):
        metrics.record("update", step, build_update(norm))
    whole = path.read_text()
    path.write_text(whole[: whole.rindex("{") + 9])  # the update of step 4 is torn
    TrainingMetrics(path, alarms=RULES).record("update", 4, build_update(2.5))
    assert path.read_text() == whole


def test_record__steps_that_trained_on_nothing__are_not_part_of_a_series(tmp_path: Path) -> None:
    metrics = TrainingMetrics(tmp_path / "metrics.jsonl", alarms=RULES)
    for step, norm in enumerate([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]):
        metrics.record("update", step, build_update(norm))
    assert [line["event"] for line in read(tmp_path / "metrics.jsonl")] == ["update"] * 9


def test_record__sinks__receive_new_lines_only(tmp_path: Path) -> None:
    received: list[Any] = []
    path = tmp_path / "metrics.jsonl"
    TrainingMetrics(path).record("policy", 0, {"time": 1.0})
    metrics = TrainingMetrics(path, alarms=RULES, sinks=[lambda *line: received.append(line)])
    metrics.record("policy", 0, {"time": 1.0})
    for step in range(5):
        metrics.record("update", step, build_update(NORMS[step]))
    assert [(event, step) for event, step, _ in received] == [
        *(("update", i) for i in range(4)),
        ("alarm", 4),
        ("update", 4),
    ]
    assert received[0][2] == build_update(1.0)


def test_log_line__update__is_its_main_numbers() -> None:
    with capture_logs() as logs:
        log_line("update", 3, {"reward/mean": 0.123456, "batch/tokens": 7, "trainer/idle_ratio": 0.5})
        log_line("evaluation", 3, {"reward": 0.5})
    assert logs == [
        {"event": "step trained", "log_level": "info", "step": 3, "reward/mean": 0.1235, "trainer/idle_ratio": 0.5}
    ]


def build_step(live: float = 0.5, norm: float = 0.1, cut: float = 0.0) -> dict[str, float]:
    return {"batch/live_share": live, "optim/grad_norm": norm, "batch/truncated_share": cut}


DEAD, ALIVE = build_step(live=0.0, norm=0.0), build_step()
FEW = AlarmSettings(steps=2)


def test_record__run_that_cannot_learn__is_one_line_per_sign_with_advice_and_one_warning(tmp_path: Path) -> None:
    metrics = TrainingMetrics(tmp_path / "metrics.jsonl", alarms=FEW)
    with capture_logs() as logs:
        for step in range(4):
            metrics.record("update", step, build_step(live=0.0, cut=0.75))
    lines = [line for line in read(tmp_path / "metrics.jsonl") if line["event"] == "alarm"]
    assert [(line["step"], line["sign"], line["value"], line["limit"]) for line in lines] == [
        (1, "truncated", 0.75, 0.5), (1, "no_live_group", 0.0, 0.0),
    ]  # fmt: skip
    assert "max_completion_tokens" in lines[0]["advice"]
    assert [(log["event"], log["sign"]) for log in logs] == [
        ("most completions are cut at the token limit", "truncated"),
        ("no group has rewards that differ", "no_live_group"),
    ]
    assert metrics.signs == (LearningSign.TRUNCATED, LearningSign.NO_LIVE_GROUP)


@pytest.mark.parametrize("restart", range(8))
def test_record__pause_after_dead_steps__is_due_again_only_after_as_many_others(tmp_path: Path, restart: int) -> None:
    """Steps 2 to 4 are dead, so a pause is due after step 4. It is recorded, and due again after step 7."""
    path, due = tmp_path / "metrics.jsonl", []
    metrics = TrainingMetrics(path, alarms=FEW, stop_when_dead=3)
    for step, update in enumerate([DEAD, ALIVE, *[DEAD] * 6]):
        if step == restart:
            metrics = TrainingMetrics(path, alarms=FEW, stop_when_dead=3)
        metrics.record("update", step, update)
        if metrics.is_pause_due:
            due.append(step)
            metrics.record("pause", step, {"dead_steps": 3})
        assert not metrics.is_pause_due
    assert due == [4, 7]


def test_is_pause_due__no_bound__never(tmp_path: Path) -> None:
    metrics = TrainingMetrics(tmp_path / "metrics.jsonl", stop_when_dead=0)
    for step in range(30):
        metrics.record("update", step, DEAD)
        assert not metrics.is_pause_due


def test_is_pause_due__pause_was_not_recorded__stays_due_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = TrainingMetrics(path, stop_when_dead=2)
    for step in range(2):
        metrics.record("update", step, DEAD)
    assert TrainingMetrics(path, stop_when_dead=2).is_pause_due
