"""The spelling task: rows, reward and clocks."""

from pathlib import Path

import pytest

from benchmarks.training import spelling_task
from benchmarks.training.spelling_task import SpellingConfig, SpellingRun
from covey.environments.python_rewards import PythonRows

pytestmark = pytest.mark.unit


def test_write_rows__number__are_different_questions_with_the_word_backward(tmp_path: Path) -> None:
    spelling_task.write_rows(tmp_path / "new" / "rows.jsonl", 24)
    rows = spelling_task.read_rows(str(tmp_path / "new" / "rows.jsonl"))
    assert len({row["prompt"] for row in rows}) == 24
    for row in rows:
        word = row["prompt"].split()[-1]
        assert spelling_task.compute_reward(word[::-1], row) == 1.0
        assert spelling_task.compute_reward(word[::-1] + "x", row) == 0.0


def test_split_rows__rows__are_covey_s_split() -> None:
    rows = [{"prompt": f"{n}?", "answer": str(n)} for n in range(32)]
    training, held_out = spelling_task.split_rows(rows)
    assert [row["prompt"] for row in held_out] == [task.question for task in PythonRows(rows).held_out(99)]
    assert sorted(training + held_out, key=lambda row: int(row["answer"])) == rows
    assert SpellingConfig(rows=32, steps=1, every=1, timed=1).held_out == len(held_out) == 4


def test_spelling_run__evaluation__counts_from_the_beginning_of_the_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([(1.0, 0.5), (2.0, 1.0), (5.0, 2.5)])
    monkeypatch.setattr(spelling_task, "read_clocks", lambda: next(clocks))
    run = SpellingRun()
    run.stamp()
    run.begin()
    run.add_evaluation(4, 0.75)
    assert (run.stamps, run.evaluations) == ([(1.0, 0.5)], [(4, 0.75, 3.0, 1.5)])
    assert run.finish().peak > 0
