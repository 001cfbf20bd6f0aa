import json

import pytest

from covey.tasks.dataset_row import BadRowError, Reading, TaskRecord
from tests.fakes.tasks import make_row

pytestmark = pytest.mark.unit

ROW = TaskRecord(problem_id="a", task_type="math", prompt="1?", verification_info={"ground_truth": ["1"]})
TEXT = (
    b'{"problem_id":"a","prompt":"1?","solve_rates":{},"task_type":"math","verification_info":{"ground_truth":["1"]}}'
)


def test_row__worked_example__has_this_text_and_reads_back():
    assert ROW.to_bytes() == TEXT
    assert TaskRecord.from_bytes(TEXT) == ROW


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        TEXT[:-1] + b',"more":1}',
        TEXT.replace(b'"1?"', b"1"),
        TEXT.replace(b"{}", b'{"x":2}'),
        TEXT.replace(b"{}", b'{"x":true}'),
        TEXT.replace(b'{"ground_truth":["1"]}', b'"no"'),
    ],
)
def test_from_bytes__anything_else__value_error(data):
    with pytest.raises(ValueError, match=r"."):
        TaskRecord.from_bytes(data)


def test_build_row__columns_of_published_data_sets__are_read():
    row = Reading().build_row(make_row(4, solve_rate_small=0.25, solve_rate_big=None, source="x", in_source_id="y"))
    assert row == TaskRecord(
        problem_id="p-4",
        task_type="math",
        prompt="What is 4 + 1?",
        verification_info={"ground_truth": ["5"]},
        solve_rates={"small": 0.25},
    )


def test_build_row__its_own_output__gives_the_same_row():
    row = Reading().build_row(make_row(4, solve_rate_small=1))
    assert Reading().build_row(json.loads(row.to_bytes())) == row


@pytest.mark.parametrize(
    ("task_type", "info"),
    [
        ("math", {"ground_truth": "5"}),
        ("short_answer", {"ground_truth": ["Paris"]}),
        ("multiple_choice", {"choices": ["a", "b"], "right": 1}),
        ("code", {"inputs": ["1"], "outputs": ["1"]}),
        ("code", {"test_list": ["assert f(1)"]}),
    ],
)
def test_build_row__null_in_a_field_of_another_row__is_a_missing_field(task_type, info):
    """Parquet and the package datasets give all rows the fields of all others, with null in those that a row lacks."""
    others = ("answers", "answer", "language", "test_cases", "test_list", "inputs", "outputs", "fn_name", "note")
    padded = dict.fromkeys(others) | info
    assert Reading().build_row(make_row(1, task_type=task_type, verification_info=padded)) == Reading().build_row(
        make_row(1, task_type=task_type, verification_info=info)
    )


def test_build_row__verification_info__may_be_a_python_literal():
    """SYNTHETIC-1 has text that is no JSON, such as None and single quotes."""
    tests = {
        "language": "python",
        "test_cases": [{"fn_name": None, "input": "1", "output": "'x'", "type": "stdin_stdout"}],
    }
    row = Reading().build_row(make_row(1, task_type="verifiable_code", verification_info=repr(tests)))
    assert row.verification_info == {"inputs": ["1"], "outputs": ["'x'"], "fn_name": None}


@pytest.mark.parametrize("digits", ["7" * 5000, "-" + "7" * 5000])
def test_build_row__integer_of_5000_digits__is_kept_as_text(digits):
    info = f'{{"inputs": [[{digits}, 5]], "outputs": [{digits}], "fn_name": "f"}}'
    row = Reading().build_row(make_row(1, task_type="code", verification_info=info))
    assert row.verification_info == {"inputs": [f"{digits}\n5"], "outputs": [digits], "fn_name": "f"}
    assert TaskRecord.from_bytes(row.to_bytes()) == row


def test_build_row__columns_of_a_published_data_set__are_read_by_the_kind():
    values = {"task_id": 11, "text": "Write add.", "test_list": ["assert add(1, 2) == 3"], "code": "secret"}
    row = Reading(task_type="code").build_row(values)
    assert row.problem_id == "11"
    assert row.prompt == "Write add."
    assert row.verification_info == {"assertions": "assert add(1, 2) == 3", "names": ["add"], "prelude": ""}


def test_build_row__no_problem_id__derives_one_from_the_prompt():
    """The expected name is the SHA-256 of "What is 4 + 1?"."""
    row = Reading().build_row(make_row(4, problem_id=None))
    assert row.problem_id == "prompt-9c2fe69aa2a3941b"


@pytest.mark.parametrize(
    ("value", "reading", "task_type"),
    [
        ("math", Reading(), "math"),
        ("verifiable_math", Reading(), "math"),
        ("gsm8k", Reading(renames={"gsm8k": "math"}), "math"),
        ("verifiable_math", Reading(renames={"verifiable_math": "short_answer"}), "short_answer"),
        (None, Reading(task_type="short_answer"), "short_answer"),
        ("", Reading(task_type="verifiable_math"), "math"),
        ("verifiable_math", Reading(task_type="short_answer"), "math"),
    ],
)
def test_build_row__task_type__by_name_alias_and_option(value, reading, task_type):
    assert reading.build_row(make_row(1, task_type=value)).task_type == task_type


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"task_type": None}, "unknown_task_type", "has no task_type"),
        ({"task_type": "poetry"}, "unknown_task_type", "'poetry'"),
        ({"task_type": "../../x"}, "unknown_task_type", "not an environment kind"),
        ({"task_type": 7}, "unknown_task_type", "not an environment kind"),
        ({"prompt": None}, "bad_row", "prompt is missing"),
        ({"prompt": " \n"}, "bad_row", "prompt is missing"),
        ({"prompt": "\ud800"}, "bad_row", "surrogates"),
        ({"verification_info": None}, "bad_row", "verification_info is missing"),
        ({"verification_info": "{}"}, "bad_row", "no field ground_truth"),
        ({"verification_info": '{"ground_truth": []}'}, "bad_row", "ground_truth in verification_info is empty"),
        ({"verification_info": '{"ground_truth": '}, "bad_row", "EOF while parsing"),
        ({"verification_info": "[" * 100_000}, "bad_row", "recursion limit"),
        ({"verification_info": "[]"}, "bad_row", "not an object"),
        ({"verification_info": "{'ground_truth': f()}"}, "bad_row", "malformed node"),
        ({"verification_info": "{'ground_truth': "}, "bad_row", "was never closed"),
        ({"verification_info": "{'" + "[" * 100_000}, "bad_row", "a column is invalid"),
        ({"solve_rate_x": 1.5}, "bad_row", "not a number from 0 to 1"),
        ({"solve_rate_x": "half"}, "bad_row", "not a number from 0 to 1"),
        ({"solve_rate_x": float("nan")}, "bad_row", "not a number from 0 to 1"),
    ],
)
def test_build_row__bad_columns__name_the_problem_and_the_fix(changes, code, text):
    with pytest.raises(BadRowError) as caught:
        Reading().build_row(make_row(1, **changes))
    assert caught.value.code == code
    assert text in caught.value.message
    assert "--skip-bad" in caught.value.fix or "--task-type" in caught.value.fix


def test_build_row__over_the_limit__is_too_long(monkeypatch):
    monkeypatch.setattr("covey.tasks.dataset_row.MAX_ROW_BYTES", 200)
    assert len(Reading().build_row(make_row(1, prompt="a" * 80)).to_bytes()) < 200
    with pytest.raises(BadRowError) as caught:
        Reading().build_row(make_row(1, prompt="a" * 200))
    assert caught.value.code == "row_too_long"
