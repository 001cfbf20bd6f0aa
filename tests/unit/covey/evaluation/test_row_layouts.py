"""Rows of published benchmarks, with the columns that their publishers use."""

import datetime
import json

import pytest

from covey.errors import OperatorError
from covey.evaluation.row_layouts import LAYOUTS, find_layout, read_date

pytestmark = pytest.mark.unit

GSM8K = {"question": "How many?", "answer": "He has <<3*500=1500>>1500 left.\n#### 1,500"}
MATH = {
    "problem": "What is $1/2 + 1/3$?", "solution": "So $\\boxed{\\frac{5}{6}}$.", "answer": "\\frac{5}{6}",
    "subject": "Prealgebra", "level": 2, "unique_id": "test/prealgebra/1.json",
}  # fmt: skip
AIME_2024 = {"id": 60, "problem": "Every morning ...", "solution": "...", "answer": "033", "url": "...", "year": "2024"}
AIME_OLD = {"ID": "2024-I-1", "Problem": "Every morning ...", "Solution": "...", "Answer": 204}
AIME_2025 = {"question": "Find the sum of all ...", "answer": "70"}
LIVECODEBENCH = {
    "question_title": "Sum", "question_content": "Read two numbers and print their sum.", "platform": "atcoder",
    "question_id": "abc301_a", "contest_id": "abc301", "contest_date": "2024-08-10T00:00:00", "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "5 5\n", "output": "10\n", "testtype": "stdin"}]), "metadata": "{}",
}  # fmt: skip
MMLU = {"question": "Which?", "subject": "anatomy", "choices": ["0", "4", "2", "6"], "answer": 1}
MMLU_PRO = {
    "question_id": 70, "question": "Which?", "options": ["I", "II", "III"], "answer": "B", "answer_index": 1,
    "cot_content": "", "category": "business", "src": "x",
}  # fmt: skip
ARC = {
    "id": "Mercury_1", "question": "Which?", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2",
}  # fmt: skip
HLE_CHOICE = {
    "id": "668", "question": "Which?\n\nAnswer Choices:\nA. red\nB. green", "image": "", "answer": "B",
    "answer_type": "multipleChoice", "rationale": "...", "raw_subject": "Art", "category": "Other",
}  # fmt: skip
HLE_EXACT = HLE_CHOICE | {"question": "Who?", "answer": "Saffron", "answer_type": "exactMatch"}
OWN = {"problem_id": "p", "task_type": "math", "prompt": "1 + 1?", "verification_info": {"ground_truth": "2"}}


@pytest.mark.parametrize(
    ("row", "layout", "kind", "verification"),
    [
        (GSM8K, "gsm8k", "math", {"ground_truth": ["1500"]}),
        (MATH, "math", "math", {"ground_truth": ["\\frac{5}{6}"]}),
        (AIME_2024, "aime", "math", {"ground_truth": ["33"]}),
        (AIME_OLD, "aime", "math", {"ground_truth": ["204"]}),
        (AIME_2025, "aime", "math", {"ground_truth": ["70"]}),
        (
            LIVECODEBENCH,
            "livecodebench",
            "code",
            {"inputs": ["1 2\n", "5 5\n"], "outputs": ["3\n", "10\n"], "fn_name": None},
        ),
        (MMLU, "choice", "multiple_choice", {"choices": ["0", "4", "2", "6"], "right": 1}),
        (MMLU_PRO, "choice", "multiple_choice", {"choices": ["I", "II", "III"], "right": 1}),
        (ARC, "choice", "multiple_choice", {"choices": ["a", "b"], "right": 1}),
        (HLE_CHOICE, "hle", "multiple_choice", {"choices": ["red", "green"], "right": 1}),
        (HLE_EXACT, "hle", "short_answer", {"answers": ["Saffron"]}),
        (HLE_EXACT | {"answer": "x^2"}, "hle", "math", {"ground_truth": ["x^2"]}),
        (OWN, "covey", "math", {"ground_truth": ["2"]}),
    ],
)
def test_layout__published_columns__are_found_and_read(
    row: dict[str, object], layout: str, kind: str, verification: dict[str, object]
) -> None:
    found = find_layout(row)
    assert found.name == layout
    asked = found.read(row)
    assert (asked.kind, dict(asked.verification)) == (kind, verification)


def test_layout__names_and_labels__are_those_of_the_row() -> None:
    read = {name: LAYOUTS[name].read for name in LAYOUTS}
    assert read["math"](MATH).labels == {"subject": "Prealgebra", "level": "2"}
    assert read["math"](MATH).name == "test/prealgebra/1.json"
    assert read["livecodebench"](LIVECODEBENCH).labels == {
        "difficulty": "easy",
        "platform": "atcoder",
        "month": "2024-08",
    }
    assert read["aime"](AIME_OLD).name == "2024-I-1"
    assert read["hle"](HLE_EXACT).labels == {"category": "Other", "answer_type": "exactMatch"}
    assert "Exact Answer:" in read["hle"](HLE_EXACT).system
    assert "Exact Answer:" not in read["hle"](HLE_CHOICE).system


@pytest.mark.parametrize(
    ("layout", "row", "words"),
    [
        ("gsm8k", {"question": "", "answer": "#### 1"}, "question is missing"),
        ("aime", AIME_2025 | {"answer": "1000"}, "not an integer from 0 to 999"),
        ("aime", AIME_2025 | {"answer": True}, "not an integer from 0 to 999"),
        ("choice", MMLU | {"answer": 4}, "outside the 4 choices"),
        ("choice", MMLU | {"choices": "a, b"}, "not a list"),
        ("livecodebench", LIVECODEBENCH | {"public_test_cases": "[]", "private_test_cases": "[]"}, "0 inputs"),
    ],
)
def test_layout__a_malformed_row__says_what_is_wrong(layout: str, row: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LAYOUTS[layout].read(row)


def test_find_layout__unknown_columns__are_refused() -> None:
    with pytest.raises(OperatorError, match="unknown_layout: the columns a, b fit no known layout"):
        find_layout({"a": 1, "b": 2})


def test_read_date__text_and_time__are_dates() -> None:
    date = datetime.date(2024, 8, 10)
    assert read_date(LIVECODEBENCH) == date
    assert read_date({"contest_date": datetime.datetime(2024, 8, 10, 23)}) == date
    assert read_date({"contest_date": "2024-08-10"}) == date
    assert read_date({}) is None
