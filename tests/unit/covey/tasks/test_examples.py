import io
import json
from collections import Counter
from contextlib import redirect_stdout

import pytest

from covey.environments.kinds.mathematics.mathematics import is_right
from covey.environments.kinds.row_kinds import MultipleChoiceSource, ShortAnswerSource
from covey.errors import OperatorError
from covey.tasks import examples
from covey.tasks.example_questions import Example
from covey.tasks.examples import TEMPLATES, build_rows

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def rows():
    return build_rows(300, seed=3)


def test_build_rows__equal_seeds__give_equal_rows_of_many_templates_without_repeated_prompts(rows):
    assert rows == build_rows(300, seed=3)
    assert rows != build_rows(300, seed=4)
    assert len({row["prompt"] for row in rows}) == 300
    assert len(TEMPLATES) >= 20
    counts = Counter(row["task_type"] for row in rows)
    assert set(counts) == {"verifiable_math", "verifiable_code", "multiple_choice", "short_answer"}
    assert min(counts.values()) >= 30


def test_build_rows__answers__have_the_form_of_their_kind(rows):
    for row in rows:
        info = json.loads(row["verification_info"])
        if row["task_type"] == "verifiable_math":
            assert is_right(info["ground_truth"], [info["ground_truth"]])
        if row["task_type"] == "multiple_choice":
            assert MultipleChoiceSource.read_info(info)["right"] == "ABCDEFG".index(info["answer"])
        if row["task_type"] == "short_answer":
            assert ShortAnswerSource.read_info(info) == info


def test_build_rows__reference_solutions__pass_all_their_tests(rows, monkeypatch):
    programs = [row for row in rows if "reference_solution" in row]
    assert len(programs) > 50
    for row in programs:
        cases = json.loads(json.loads(row["verification_info"])["test_cases"])
        assert len(cases["inputs"]) == len(cases["outputs"]) == 12
        for arguments, expected in zip(cases["inputs"], cases["outputs"], strict=True):
            scope = {}
            code = compile(row["reference_solution"], "solution", "exec")
            if "fn_name" in cases:
                exec(code, scope)
                assert scope[cases["fn_name"]](*arguments) == expected, row["prompt"]
            else:
                monkeypatch.setattr("sys.stdin", io.StringIO(arguments))
                printed = io.StringIO()
                with redirect_stdout(printed):
                    exec(code, scope)
                assert printed.getvalue() == expected, row["prompt"]


def test_build_rows__more_than_the_templates_have__is_refused(monkeypatch):
    monkeypatch.setattr(
        examples, "TEMPLATES", (lambda rng: Example(task_type="math", prompt=str(rng.randint(1, 3)), info={}),)
    )
    assert len(build_rows(3)) == 3
    with pytest.raises(OperatorError, match="too_many_rows"):
        build_rows(4)
