"""Reading and grading of programming tasks."""

import json

import pytest

from covey.environments.base import GradeLimit, refuse_data_sets
from covey.environments.kinds.code import programs
from covey.environments.kinds.code.code import CodeSource

pytestmark = pytest.mark.unit

STDIN = {"inputs": ["1\n2", "3"], "outputs": ["3\n", "4"], "fn_name": None}
CALLS = {"inputs": [[1, [2]], ["a"]], "outputs": [[3], "b"], "fn_name": "f"}
LISTED = [{"type": "stdin_stdout", "input": "1\n2", "output": "3\n"}, {"input": "3", "output": "4", "fn_name": None}]


@pytest.mark.parametrize(
    ("raw", "info"),
    [
        (STDIN, STDIN),
        (CALLS, CALLS),
        ({"test_cases": STDIN}, STDIN),
        ({"language": "python", "test_cases": json.dumps(CALLS)}, CALLS),
        ({"inputs": [["1", "2"], "3"], "outputs": [["3", ""], "4"]}, STDIN),
        ({"test_cases": LISTED}, STDIN),
        (
            {"test_cases": [{"input": [1], "output": 2, "fn_name": "f"}]},
            {"inputs": [[1]], "outputs": [2], "fn_name": "f"},
        ),
        (
            {"inputs": ['[1, 2]\n"a"\n'], "outputs": ['"b"'], "fn_name": "f"},
            {"inputs": [[[1, 2], "a"]], "outputs": ["b"], "fn_name": "f"},
        ),
    ],
)
def test_read_info__every_form__has_one_meaning(raw, info):
    assert CodeSource.read_info(raw) == info
    assert CodeSource.read_info(CodeSource.read_info(raw)) == info


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "no lists called inputs and outputs"),
        ({"test_cases": "{"}, "test_cases is not valid JSON"),
        ({"test_cases": "[" * 2000}, "test_cases is not valid JSON"),
        ({"test_cases": 5}, "neither an object nor a list"),
        ({"test_cases": []}, "no lists|0 inputs"),
        ({"inputs": [], "outputs": []}, "0 inputs and 0 outputs"),
        ({"inputs": ["1"], "outputs": ["1", "2"]}, "1 inputs and 2 outputs"),
        ({"inputs": [1], "outputs": ["1"]}, "an input of a test is neither"),
        ({"inputs": ["1"], "outputs": [["1", 2]]}, "an output of a test is neither"),
        ({"inputs": ["\ud800"], "outputs": ["1"]}, "surrogates not allowed"),
        ({**CALLS, "fn_name": "f()"}, "not a valid function name"),
        ({**CALLS, "fn_name": 5}, "not a valid function name"),
        ({**CALLS, "inputs": [5, []]}, "neither a list of arguments"),
        ({**CALLS, "inputs": ["x", []]}, "an argument of a test is not valid JSON"),
        ({**STDIN, "language": "rust"}, "only python"),
        ({"test_cases": [{"input": "1"}]}, "no input or no output"),
        ({"test_cases": [*LISTED, {"input": [], "output": 1, "fn_name": "f"}]}, "different functions"),
    ],
)
def test_read_info__what_cannot_be_graded__is_refused(raw, message):
    with pytest.raises(ValueError, match=message):
        CodeSource.read_info(raw)


def test_source__requires_isolation_and_extracts_the_last_code_block():
    source = CodeSource({"dataset": "0x" + "00" * 32}, refuse_data_sets)
    assert source.requires_isolation
    assert source.extraction == "last_code_block"


def test_grade__many_tests__are_all_passed_on(monkeypatch):
    calls = []
    monkeypatch.setattr(programs, "run_tests", lambda program, tests, limits: calls.append((program, tests)) or True)
    source = CodeSource({"dataset": "0x" + "00" * 32}, refuse_data_sets)
    many = {"inputs": [str(n) for n in range(40)], "outputs": [str(n) for n in range(40)], "fn_name": None}
    assert source.grade(many, "print(1)") == 1.0
    assert calls == [("print(1)", programs.ProgramTests(inputs=many["inputs"], outputs=many["outputs"], function=""))]


def test_grade__limit__is_raised(monkeypatch):
    def reach(*_):
        raise GradeLimit("sandbox_cpu")

    monkeypatch.setattr(programs, "run_tests", reach)
    with pytest.raises(GradeLimit) as reached:
        CodeSource({"dataset": "0x" + "00" * 32}, refuse_data_sets).grade(STDIN, "x")
    assert reached.value.code == "sandbox_cpu"
