"""Environments from Python."""

import json
from pathlib import Path

import pytest

import covey
from covey.errors import OperatorError

pytestmark = pytest.mark.integration


def test_environment__generator__asks_and_grades():
    with covey.Environment("reasoning_gym:spell_backward") as words:
        prompt = words.prompt(7)
        word = prompt.text.rpartition(": ")[2]
        assert words.grade(prompt, word[::-1]).reward == 1.0
        assert [grade.reward for grade in words.grade_all([(prompt, "?"), (prompt, word[::-1])])] == [0.0, 1.0]
        assert len(words.held_out(3)) == 3


def test_environment__rows__are_graded_in_the_sandbox(tmp_path: Path):
    rows = [
        {"prompt": f"What is {n} + {n}?", "verification_info": {"ground_truth": str(2 * n)}, "task_type": "math"}
        for n in range(40)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with covey.Environment(dataset=tmp_path / "rows.jsonl", instruction="Put the answer in a box.") as sums:
        prompt = sums.prompt(3)
        question = next(row for row in rows if row["prompt"] in prompt.text)
        assert prompt.text.endswith("Put the answer in a box.")
        assert sums.grade(prompt, rf"\boxed{{{question['verification_info']['ground_truth']}}}").reward == 1.0


@pytest.mark.parametrize(
    ("arguments", "code"), [({"kind": "nothing"}, "bad_environment"), ({"kind": "math"}, "no_dataset")]
)
def test_environment__wrong__is_refused_and_leaves_nothing(arguments, code, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OperatorError) as caught:
        covey.Environment(**arguments)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []
