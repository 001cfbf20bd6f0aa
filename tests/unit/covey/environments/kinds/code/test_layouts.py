"""Layouts of tests as published data sets have them, and what is refused because it would be a guess."""

import base64
import json
import pickle
import zlib

import pytest

from covey.environments.kinds.code import packed_tests
from covey.environments.kinds.code.layouts import read_columns, read_tests
from covey.environments.kinds.code.packed_tests import unpack_text

pytestmark = pytest.mark.unit

STDIN = {"inputs": ["1\n2", "3"], "outputs": ["3\n", "4"], "fn_name": None}
CALLS = {"inputs": [[1, [2]], ["a"]], "outputs": [[3], "b"], "fn_name": "f"}
ADD = {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}
LISTED = [{"type": "stdin_stdout", "input": "1\n2", "output": "3\n"}, {"input": "3", "output": "4", "fn_name": None}]
FUNCTIONAL = [{"input": "1\n2", "output": "3", "testtype": "functional"}]
LONG = "7" * 5000


def pack(value):
    """Pack tests as LiveCodeBench does."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


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
        # SYNTHETIC-1
        (
            {
                "language": "python",
                "test_cases": [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}],
            },
            ADD,
        ),
        # APPS and TACO
        ({"input_output": json.dumps(ADD)}, ADD),
        ({"input_output": json.dumps({"inputs": STDIN["inputs"], "outputs": STDIN["outputs"]})}, STDIN),
        # DeepCoder
        ({"tests": json.dumps([FUNCTIONAL[0] | {"metadata": {"func_name": "add"}}])}, ADD),
        # LiveCodeBench, whose private tests are JSON or packed
        (
            {
                "public_test_cases": json.dumps(FUNCTIONAL),
                "private_test_cases": json.dumps([{"input": "3\n4", "output": "7", "testtype": "functional"}]),
                "metadata": '{"func_name": "add"}',
            },
            {"inputs": [[1, 2], [3, 4]], "outputs": [3, 7], "fn_name": "add"},
        ),
        (
            {
                "public_test_cases": '[{"input": "1\\n2", "output": "3\\n", "testtype": "stdin"}]',
                "private_test_cases": pack('[{"input": "3", "output": "4", "testtype": "stdin"}]'),
                "metadata": "{}",
            },
            STDIN,
        ),
        ({"fn_name": "add", "test_cases": FUNCTIONAL}, ADD),
        ({"entry_point": "Solution().add", "test_cases": FUNCTIONAL}, ADD),
        # Null is what Parquet writes for a field that a row lacks.
        ({"test_cases": LISTED, "inputs": None, "language": None, "test_list": None}, STDIN),
        (
            {"test_cases": [{"input": [1], "output": None, "fn_name": "f", "testtype": None}]},
            {"inputs": [[1]], "outputs": [None], "fn_name": "f"},
        ),
        ({**STDIN, "test_list": [], "test_cases": None, "tests": {"inputs": [], "outputs": None}, "test": ""}, STDIN),
        ({**STDIN, "language": "Python 3"}, STDIN),
        ({**STDIN, "language": "Python 3.11"}, STDIN),
        ({**STDIN, "language": "PYTHON-3"}, STDIN),
        ({"test_cases": [*LISTED, None]}, STDIN),
        # What says in other words that the tests are about standard input.
        ({**STDIN, "function": None, "is_functional": False, "call_type": "std", "metadata": {"func": ""}}, STDIN),
        ({**STDIN, "type": "medium", "metadata": {"scoring_method": "exact", "classification": "easy"}}, STDIN),
        ({**STDIN, "starter_code": "import sys\n", "note": "function"}, STDIN),
        ({**STDIN, "starter_code": "def main():\n    n = int(input())\n"}, STDIN),
        # Integers that are too long for Python stay text.
        (
            {"inputs": [[10**5000, "a"]], "outputs": [[10**5000 + 1]], "fn_name": "f"},
            {"inputs": [f'1{"0" * 5000}\n"a"'], "outputs": [f"[1{'0' * 4999}1]"], "fn_name": "f"},
        ),
        ({"inputs": [LONG], "outputs": ["7"], "fn_name": "f"}, {"inputs": [LONG], "outputs": ["7"], "fn_name": "f"}),
        (
            {"test_cases": f'{{"inputs": [[-{LONG}]], "outputs": ["b"], "fn_name": "f"}}'},
            {"inputs": [f"-{LONG}"], "outputs": ['"b"'], "fn_name": "f"},
        ),
    ],
)
def test_read_tests__every_layout__has_one_meaning(raw, info):
    assert read_tests(raw) == info
    assert read_tests(read_tests(raw)) == info


@pytest.mark.parametrize(
    ("raw", "info"),
    [
        # MBPP, whose names are only in the assertions
        (
            {
                "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
                "test_setup_code": "import math",
                "challenge_test_list": ["assert math.isclose(add(1.5, 0), 1.5)"],
            },
            {
                "assertions": "import math\nassert add(1, 2) == 3\nassert add(0, 0) == 0\n"
                "assert math.isclose(add(1.5, 0), 1.5)",
                "names": ["add"],
                "prelude": "",
            },
        ),
        # HumanEval
        (
            {
                "test": "def check(candidate):\n    assert candidate(2) == twice(2)",
                "entry_point": "f",
                "prompt": 'def twice(x): return 2 * x\n\ndef f(x):\n    """?"""\n',
            },
            {
                "assertions": "def check(candidate):\n    assert candidate(2) == twice(2)\n\ncheck(f)\n",
                "names": ["f"],
                "prelude": 'def twice(x): return 2 * x\n\ndef f(x):\n    """?"""\n',
            },
        ),
        (
            {"test_list": ["assert add(1, 2) == 3", None], "test_setup_code": None, "inputs": []},
            {"assertions": "assert add(1, 2) == 3", "names": ["add"], "prelude": ""},
        ),
        (
            {"test_cases": ["assert add(1, 2) == 3"]},
            {"assertions": "assert add(1, 2) == 3", "names": ["add"], "prelude": ""},
        ),
    ],
)
def test_read_tests__by_assertion__keeps_the_source_and_what_it_calls(raw, info):
    assert read_tests(raw) == info
    assert read_tests(read_tests(raw)) == info


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "tests in 0 layouts"),
        ({**STDIN, "test_list": ["assert f()"]}, "tests in 2 layouts"),
        ({"test_cases": LISTED, "tests": LISTED}, "both test_cases and tests"),
        ({"public_tests": {"input": ["1"], "output": ["1"]}}, "tests in 0 layouts"),
        ({"test_cases": "{"}, "test_cases is not valid JSON"),
        ({"test_cases": "[" * 2000}, "test_cases is not valid JSON"),
        ({"test_cases": 5}, "neither an object nor a list"),
        ({"test_cases": []}, "at least one"),
        ({"test_cases": {"input": "1", "output": "1"}}, "unknown field 'input'"),
        ({"test_cases": {**STDIN, "checker": "any order"}}, "unknown field 'checker'"),
        ({**STDIN, "input_mode": "file"}, "only stdio"),
        ({**STDIN, "generated_checker": "def check(a, b): ..."}, "a program that checks outputs"),
        ({"inputs": [], "outputs": []}, "0 inputs and 0 outputs"),
        ({"inputs": ["1"], "outputs": ["1", "2"]}, "1 inputs and 2 outputs"),
        ({"inputs": ["1"]}, "no lists called inputs and outputs"),
        ({"inputs": [1], "outputs": ["1"]}, "an input of a test is neither"),
        ({"inputs": ["1"], "outputs": [["1", 2]]}, "an output of a test is neither"),
        ({"inputs": ["\ud800"], "outputs": ["1"]}, "surrogates not allowed"),
        ({**CALLS, "fn_name": "f()"}, "not a valid function name"),
        ({**CALLS, "fn_name": 5}, "not a valid function name"),
        ({**CALLS, "fn_name": ["f"]}, "not a valid function name"),
        ({**CALLS, "inputs": [5, []]}, "neither a list of arguments"),
        ({**CALLS, "inputs": [{"a": 1}, []]}, "neither a list of arguments"),
        ({**CALLS, "inputs": ["x", []]}, "an argument of a test is not valid JSON"),
        ({**STDIN, "language": "rust"}, "only python"),
        ({"test_cases": [{"input": "1"}]}, "no input or no output"),
        ({"test_cases": [*LISTED, {"input": [], "output": 1, "fn_name": "f"}]}, "different functions"),
        ({"test_cases": [{"input": [], "output": 1, "fn_name": name} for name in "fg"]}, "different functions"),
        ({"fn_name": "g", "test_cases": CALLS}, "different functions"),
        *(
            ({"inputs": ["1\n2"], "outputs": ["3"], **hint}, "seem to call a function")
            for hint in (
                {"function": "add"},
                {"func": "add"},
                {"method": "add"},
                {"method_name": "add"},
                {"functionName": "add"},
                {"call_type": "function"},
                {"type": "function"},
                {"test_type": "functional"},
                {"is_functional": True},
                {"is_call_based": True},
                {"signature": "add(a, b)"},
                {"class_name": "Solution"},
                {"starter_code": "class Solution:\n    def add(self, a, b):\n        pass"},
                {"starter_code": "def add(a, b):"},
                {"metadata": {"function": "add"}},
                {"metadata": '{"method": "add"}'},
            )
        ),
        ({"test_cases": [{"input": "1", "output": "1", "metadata": {"func": "f"}}]}, "seem to call a function"),
        ({"test_cases": FUNCTIONAL}, "ask for a function, which they do not name"),
        ({"testtype": "functional", "test_cases": [{"input": "1", "output": "1"}]}, "ask for a function"),
        ({"fn_name": "f", "test_cases": LISTED}, "ask for standard input, but name a function"),
        ({"test_cases": [LISTED[0], FUNCTIONAL[0] | {"metadata": {"func_name": "f"}}]}, "different functions"),
        ({"test_cases": [{"input": "1", "output": "1", "type": "interactive"}]}, "the type of a test is 'interactive'"),
        ({"test_cases": [{"input": "1", "output": "1", "type": ["stdin"]}]}, "the type of a test is"),
        ({"test_cases": [{"input": "1", "output": "1", "mode": "function"}]}, "unknown field 'mode'"),
        ({"private_test_cases": "not packed", "public_test_cases": "[]"}, "packed tests cannot be read"),
        ({"public_test_cases": '{"input": "1"}'}, "not a list of tests"),
        ({"public_test_cases": "[]", "private_test_cases": "[]"}, "at least one"),
        ({"test_list": [1]}, "test_list is neither"),
        ({"test_list": ["assert ("]}, "cannot be compiled"),
        ({"test": "def check(candidate):\n    assert candidate()"}, "there is no entry_point"),
        ({"assertions": "assert f()", "names": "f"}, "names a list"),
    ],
)
def test_read_tests__what_cannot_be_graded__is_refused(raw, message):
    with pytest.raises(ValueError, match=message):
        read_tests(raw)


@pytest.mark.parametrize("text", ["", "[]", "x" * 300, "\u00e9" * 70_000])
def test_unpack_text__string_of_any_length_and_protocol__is_read(text):
    for protocol in range(6):
        packed = base64.b64encode(zlib.compress(pickle.dumps(text, protocol))).decode()
        assert unpack_text(packed) == text


class Attack:
    def __reduce__(self):
        return (print, ("taken over",))


@pytest.mark.parametrize("value", [Attack(), ["x"], {"a": "b"}, 5, None, b"x", ("x", "y"), print, 1.5])
def test_unpack_text__pickle_of_anything_else__is_refused_and_not_loaded(value, capsys):
    with pytest.raises(ValueError, match="packed tests cannot be read"):
        unpack_text(pack(value))
    assert capsys.readouterr().out == ""


def test_unpack_text__bomb__is_refused_at_the_limit(monkeypatch):
    monkeypatch.setattr(packed_tests, "MAX_PACKED_BYTES", 1000)
    with pytest.raises(ValueError, match="longer than 1000 bytes"):
        unpack_text(pack("x" * 100_000))
    with pytest.raises(ValueError, match="cut off"):
        unpack_text(base64.b64encode(zlib.compress(pickle.dumps("x" * 50))[:-4]).decode())


PROMPT = 'def f(x):\n    """Double x."""\n'
CHECK = "def check(candidate):\n    assert candidate(2) == 4"
EXAMPLE = "Your program must pass this test, among others:"


@pytest.mark.parametrize(
    ("row", "question", "raw"),
    [
        # HumanEval
        (
            {"prompt": PROMPT, "test": CHECK, "entry_point": "f", "task_id": "x"},
            PROMPT,
            {"prompt", "test", "entry_point"},
        ),
        # MBPP and its sanitized version, which name the function in the tests only
        (
            {"text": "Add two.", "code": "x", "test_list": ["assert add(1) == 3"], "test_setup_code": ""},
            f"Add two.\n\n{EXAMPLE}\nassert add(1) == 3",
            {"test_list", "test_setup_code"},
        ),
        (
            {"prompt": "Add two.", "test_imports": ["import math"], "test_list": ["assert add(1) == 3"]},
            f"Add two.\n\n{EXAMPLE}\nassert add(1) == 3",
            {"test_list", "test_imports"},
        ),
        # APPS and TACO
        (
            {"question": "Add.", "input_output": json.dumps(ADD), "starter_code": "def add(a, b):\n", "solutions": "x"},
            "Add.\n\ndef add(a, b):\n",
            {"input_output"},
        ),
        (
            {"question": "Sum.", "input_output": json.dumps(ADD)},
            "Sum.\n\nYour program must define add.",
            {"input_output"},
        ),
        # LiveCodeBench
        (
            {
                "question_content": "Sum.",
                "starter_code": "class Solution:\n    def add(self, a, b):",
                "public_test_cases": json.dumps(FUNCTIONAL),
                "private_test_cases": "[]",
                "metadata": '{"func_name": "add"}',
            },
            "Sum.\n\nclass Solution:\n    def add(self, a, b):",
            {"public_test_cases", "private_test_cases", "metadata"},
        ),
        # LeetCodeDataset, whose prompt is the beginning of the program
        (
            {
                "query": "Write f.",
                "prompt": "import math",
                "test": CHECK,
                "entry_point": "Solution().f",
                "input_output": [],
            },
            "Write f.",
            {"test", "entry_point", "prompt"},
        ),
        # DeepCoder
        (
            {"problem": "Add.", "tests": json.dumps(LISTED), "starter_code": "", "metadata": "{}"},
            "Add.",
            {"tests", "metadata"},
        ),
    ],
)
def test_read_columns__rows_of_published_data_sets__have_a_question_and_tests(row, question, raw):
    assert read_columns(row) == (question, {name: row[name] for name in raw})
    assert read_columns(row | {"language": None, "verification_info": None}) == read_columns(row)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "no layout of tests that is known"),
        ({"prompt": "Add.", "answer": "5"}, "no layout of tests that is known"),
        ({"description": "Add.", "public_tests": {"input": ["1"], "output": ["1"]}}, "no layout of tests"),
        ({"question": ["Add."], "input_output": json.dumps(ADD)}, "question is not a string"),
        ({"question": "Add.", "input_output": json.dumps(ADD), "language": "cpp"}, "only python"),
        ({"prompt": "Add.", "test": CHECK}, "no entry_point"),
        ({"question": "Add.", "input_output": json.dumps(ADD), "checker": "x"}, "a program that checks outputs"),
        (
            {"question": "Add.", "input_output": '{"inputs": ["1"], "outputs": ["1"]}', "starter_code": "def f(x):"},
            "seem to call a function",
        ),
        ({"question": "Add.", "input_output": "{}"}, "no lists called inputs"),
    ],
)
def test_read_columns__any_other_row__is_refused(row, message):
    with pytest.raises(ValueError, match=message):
        read_columns(row)
