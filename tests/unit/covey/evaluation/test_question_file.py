"""Questions as they are asked, from files of rows and from environment kinds."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from covey.environments.base import refuse_data_sets
from covey.environments.registry import DEMO, load
from covey.errors import OperatorError
from covey.evaluation.evaluation_config import read_config
from covey.evaluation.question_file import QuestionFile, write_questions
from tests.fakes.tasks import make_data_set, make_row
from tests.unit.covey.evaluation import test_row_layouts as rows

pytestmark = pytest.mark.unit


def write(folder: Path, found: list[dict[str, Any]], *, is_lenient: bool = False, **tasks: Any) -> QuestionFile:
    """Write rows and the questions that they are asked as."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    choice = read_config(None, {"tasks": {"file": folder / "rows.jsonl", **tasks}}).tasks
    return write_questions(choice, folder / "questions.jsonl", data_sets=refuse_data_sets, is_lenient=is_lenient)


def test_rows__of_gsm8k__ask_for_a_box(tmp_path: Path) -> None:
    questions = write(tmp_path, [rows.GSM8K, rows.GSM8K | {"question": "How few?"}])
    asked = questions.read(1)
    assert asked.prompt.text.startswith("How few?\nReason step by step")
    assert asked.prompt.verification == {"ground_truth": ["1500"]}
    assert (len(questions), questions.layout, questions.skipped) == (2, "gsm8k", {})
    own = write(tmp_path, [rows.GSM8K], options={"instruction": "Be brief.", "extraction": "final_number"})
    assert own.read(0).prompt.text == "How many?\nBe brief."
    assert own.specs[0].options["extraction"] == "final_number"


def test_rows__with_choices__are_asked_with_letters_once(tmp_path: Path) -> None:
    assert "\nA. 0\nB. 4\nC. 2\nD. 6\n" in write(tmp_path, [rows.MMLU]).read(0).prompt.text
    assert write(tmp_path, [rows.HLE_CHOICE]).read(0).prompt.text == rows.HLE_CHOICE["question"]


def test_rows__of_the_exam__count_what_is_not_asked_and_have_one_grader_per_kind(tmp_path: Path) -> None:
    picture, prose = rows.HLE_CHOICE | {"image": "data:x"}, rows.HLE_EXACT | {"answer": "one two three four five six"}
    prose["answer"] = "because red things are green things too"
    questions = write(tmp_path, [picture, rows.HLE_CHOICE, prose, picture, rows.HLE_EXACT])
    assert questions.skipped == {"picture": 2, "judge": 1}
    assert [spec.kind for spec in questions.specs] == ["multiple_choice", "short_answer"]
    assert [questions.read(i).part for i in range(2)] == [0, 1]
    assert "Confidence:" in questions.read(0).prompt.system


def test_rows__in_a_window__have_these_contest_dates(tmp_path: Path) -> None:
    dated = [rows.LIVECODEBENCH | {"contest_date": f"2024-0{month}-01T00:00:00"} for month in range(1, 8)]
    questions = write(tmp_path, dated, since="2024-03-01", until="2024-05-01")
    assert [questions.read(i).labels["month"] for i in range(3)] == ["2024-03", "2024-04", "2024-05"]
    assert questions.skipped == {"a contest date outside the window": 4}
    with pytest.raises(OperatorError, match=r"no_questions: .*7 rows with a contest date outside the window"):
        write(tmp_path, dated, since="2025-01-01")
    with pytest.raises(OperatorError, match=r"bad_row: rows.jsonl, row 1: .*has no contest_date"):
        write(tmp_path, [rows.MATH], since="2025-01-01")


def test_rows__that_cannot_be_read__are_refused_or_counted(tmp_path: Path) -> None:
    found = [rows.GSM8K, {"question": "?"}, rows.GSM8K]
    with pytest.raises(OperatorError, match=r"bad_row: rows.jsonl, row 2: .*--skip-bad"):
        write(tmp_path, found)
    questions = write(tmp_path, found, is_lenient=True)
    assert (len(questions), questions.skipped) == (2, {"an error": 1})


def test_digest__of_other_rows_options_or_counts__differs(tmp_path: Path) -> None:
    digests = [
        write(tmp_path, [rows.GSM8K]).digest,
        write(tmp_path, [rows.GSM8K] * 2).digest,
        write(tmp_path, [rows.GSM8K], options={"extraction": "final_number"}).digest,
        write(tmp_path, [rows.GSM8K, {}], is_lenient=True).digest,
    ]
    assert len(set(digests)) == 4
    assert write(tmp_path, [rows.GSM8K] * 2, items=1).digest == write(tmp_path, [rows.GSM8K]).digest == digests[0]


def test_rows__of_our_own_layout__are_graded_by_their_type(tmp_path: Path) -> None:
    questions = write(tmp_path, [make_row(3), make_row(4)])
    assert (questions.layout, questions.specs[0].kind) == ("covey", "math")
    assert questions.read(1).prompt.text == "What is 4 + 1?"


def test_kind__its_held_out_questions__are_asked(tmp_path: Path) -> None:
    choice = read_config(None, {"tasks": {"kind": "reasoning_gym", "options": dict(DEMO.options), "items": 5}}).tasks
    questions = write_questions(choice, tmp_path / "q.jsonl", data_sets=refuse_data_sets)
    assert [questions.read(i).prompt for i in range(5)] == load(DEMO).held_out(5)
    assert (len(questions), questions.layout, questions.read(0).name) == (5, "", "")


def test_kind__of_a_data_set__asks_its_held_out_rows(tmp_path: Path) -> None:
    data_set = make_data_set(tmp_path / "tasks", [make_row(number) for number in range(40)])
    choice = read_config(None, {"tasks": {"kind": "math", "options": {"dataset": data_set.digest}}}).tasks
    questions = write_questions(choice, tmp_path / "q.jsonl", data_sets=lambda digest: data_set)
    assert len(questions) == data_set.count("held_out", "math") > 1


@pytest.mark.parametrize(
    "row", [rows.GSM8K, rows.MATH, rows.AIME_2025, rows.LIVECODEBENCH, rows.MMLU, rows.ARC, rows.HLE_CHOICE]
)
def test_rows__in_parquet__ask_the_same_as_in_json(tmp_path: Path, row: dict[str, Any]) -> None:
    digest = write(tmp_path, [row] * 3).digest
    pq.write_table(pa.Table.from_pylist([row] * 3), tmp_path / "rows.parquet")
    choice = read_config(None, {"tasks": {"file": tmp_path / "rows.parquet"}}).tasks
    assert write_questions(choice, tmp_path / "q.jsonl", data_sets=refuse_data_sets).digest == digest


def test_move__the_questions__are_read_at_the_new_path(tmp_path: Path) -> None:
    questions = write(tmp_path, [rows.GSM8K])
    asked = questions.read(0)
    assert questions.move(tmp_path / "kept.jsonl").read(0) == asked
    assert not (tmp_path / "questions.jsonl").exists()
