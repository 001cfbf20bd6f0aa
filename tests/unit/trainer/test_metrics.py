"""Lines that are whole and stand once."""

import json
from pathlib import Path

import pytest

from trainer.metrics import Metrics

pytestmark = pytest.mark.unit


def test_record__new_event__is_one_line(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.record("evaluation", 3, {"reward": 0.5, "n": 512})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"event": "evaluation", "step": 3, "reward": 0.5, "n": 512}\n'


def test_record__same_event_again_and_after_a_restart__stands_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    Metrics(path).record("policy", 1, {"manifest_hash": "0x1"})
    again = Metrics(path)
    assert again.has("policy", 1)
    assert not again.has("policy", 2)
    again.record("policy", 1, {"manifest_hash": "0x2"})
    again.record("update", 1, {"loss": 0.25})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {"event": "policy", "step": 1, "manifest_hash": "0x1"},
        {"event": "update", "step": 1, "loss": 0.25},
    ]


@pytest.mark.parametrize("torn", ['{"event": "upd', '{"event": "update", "step": 4}'])
def test_metrics__torn_last_line__is_cut_off_and_written_again(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "policy", "step": 0}\n' + torn)
    metrics = Metrics(path)
    metrics.record("update", 4, {})
    assert path.read_text() == '{"event": "policy", "step": 0}\n{"event": "update", "step": 4}\n'


def test_record__what_is_no_number__is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Metrics(tmp_path / "metrics.jsonl").record("update", 0, {"loss": float("nan")})
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
