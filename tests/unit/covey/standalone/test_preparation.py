"""What a run on one machine chooses when its settings leave it open."""

import json
from pathlib import Path

import pytest

from covey.environments.registry import DEMO
from covey.errors import OperatorError
from covey.standalone.config import TrainConfig
from covey.standalone.preparation import ask_rows, derive_node, prepare

pytestmark = pytest.mark.unit


def load(home: Path, **values: object) -> TrainConfig:
    return TrainConfig.load(None, {"home": str(home), "device": "cpu", **values}, {})


def test_prepare__nothing_set__is_the_demos_model_and_questions(tmp_path: Path):
    plan = prepare(load(tmp_path))
    assert (plan.params.environment.kind, plan.params.environment.options) == (DEMO.kind, dict(DEMO.options))
    model = plan.params.model
    assert (model.max_prompt_tokens, model.max_completion_tokens, model.compute_dtype) == (64, 8, "float32")
    assert (plan.engine, plan.config.device, plan.node) == ("hf", "cpu", derive_node(0))
    assert plan.config.model.choose_seq_len(model.longest) == 1024
    assert derive_node(1) != derive_node(0)


def test_prepare__data_set__is_imported_once_and_lengths_are_chosen(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    questions = [f"What is {n} + {n}?" for n in range(64)]
    rows.write_text(
        "".join(
            json.dumps({"prompt": question, "verification_info": {"ground_truth": str(2 * n)}, "task_type": "math"})
            + "\n"
            for n, question in enumerate(questions)
        )
    )
    said: list[str] = []
    plan = prepare(load(tmp_path / "run", **{"data.dataset": str(rows)}), say=said.append)
    assert plan.params.environment.kind == "math"
    assert [line.partition(" =")[0] for line in said] == ["max_prompt_tokens", "max_completion_tokens"]
    assert plan.params.model.max_prompt_tokens % 16 == 0
    rows.unlink()
    again = prepare(load(tmp_path / "run", **{"data.dataset": str(rows), "sampling.max_completion_tokens": 5}))
    assert again.params.environment == plan.params.environment
    assert again.params.model.max_completion_tokens == 5
    assert plan.load_environment().prompt(3).text in questions


def test_prepare__rows_too_short_for_a_sample__are_refused(tmp_path: Path):
    with pytest.raises(OperatorError, match="short_rows"):
        prepare(load(tmp_path, **{"model.seq_len": 71}))


def test_ask_rows__function__grades_without_a_sandbox():
    rows = [{"prompt": f"{n}?", "answer": n} for n in range(16)]
    questions = ask_rows(rows, lambda text, row: float(text == str(row["answer"])))
    (prompt,) = questions.load().held_out(1)
    assert questions.grade is not None
    replies = [prompt.build_reply(text, finished=True, tokens=1) for text in ("7", "8")]
    assert [grade.reward for grade in questions.grade(replies)] == [1.0, 0.0]
    other = ask_rows(rows[1:], lambda text, row: 0.0)
    assert other.params.options["rows"] != questions.params.options["rows"]
