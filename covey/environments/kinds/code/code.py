"""Programming tasks: the program in a completion must pass every test of the data set's row."""

import json
from importlib import import_module
from typing import ClassVar, cast

from pydantic import JsonValue

from covey.environments.base import JsonObject
from covey.environments.kinds.dataset_rows import RowSource

_LANGUAGES = {"python", "python3", "py"}


class CodeSource(RowSource):
    """Tasks whose answers are Python programs that run against tests. There is no partial credit."""

    task_type: ClassVar[str] = "code"
    extraction: ClassVar[str] = "last_code_block"
    requires_isolation: ClassVar[bool] = True

    @classmethod
    def read_info(cls, raw: JsonObject) -> JsonObject:
        """Convert the tests of a row to {"inputs": [...], "outputs": [...], "fn_name": str or None}.

        `raw` has these three keys at the top level or under "test_cases". The value of "test_cases" may also be a
        JSON string, or a list of {"input", "output", "fn_name"}. A standard input or output may be a list of lines.
        The arguments of a function are a list, or a string with one JSON value per line. In the latter case an output
        that is a string must be JSON too. Raises ValueError for anything else.
        """
        language = raw.get("language", "python")
        if not isinstance(language, str) or language.lower() not in _LANGUAGES:
            raise ValueError(f"language is {language!r:.60}, but only python can be graded")
        cases = raw.get("test_cases", dict(raw))
        if isinstance(cases, str):
            cases = _parse("test_cases", cases)
        if isinstance(cases, list):
            cases = _join_cases(cases)
        if not isinstance(cases, dict):
            raise ValueError("test_cases is neither an object nor a list of tests")
        inputs, outputs, name = cases.get("inputs"), cases.get("outputs"), cases.get("fn_name")
        if not isinstance(inputs, list) or not isinstance(outputs, list):
            raise ValueError("test_cases has no lists called inputs and outputs")
        if not inputs or len(inputs) != len(outputs):
            raise ValueError(
                f"test_cases has {len(inputs)} inputs and {len(outputs)} outputs, but must have "
                "the same number of both, at least one"
            )
        if name is None or name == "":
            texts = [
                [_read_text("an input", text) for text in inputs],
                [_read_text("an output", text) for text in outputs],
            ]
            return {"inputs": [*texts[0]], "outputs": [*texts[1]], "fn_name": None}
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"fn_name is {name!r:.60}, which is not a valid function name")
        calls = [_read_call(arguments, expected) for arguments, expected in zip(inputs, outputs, strict=True)]
        return {
            "inputs": [arguments for arguments, _ in calls],
            "outputs": [expected for _, expected in calls],
            "fn_name": name,
        }

    def grade(self, verification: JsonObject, answer: str) -> float:
        """Return 1 if the program passes all tests, else 0. Raises GradeLimit if the program reaches a limit."""
        from covey.environments.kinds.code.programs import ProgramLimits, ProgramTests, run_tests

        tests = ProgramTests(
            inputs=cast(list[JsonValue], verification["inputs"]),
            outputs=cast(list[JsonValue], verification["outputs"]),
            function=cast(str | None, verification["fn_name"]) or "",
        )
        return float(run_tests(answer, tests, ProgramLimits.read()))

    def warm_up(self) -> None:
        """Load the module that runs programs and compares outputs. This does not run a program."""
        import_module("covey.environments.kinds.code.programs")


def _join_cases(cases: list[JsonValue]) -> dict[str, JsonValue]:
    """Merge a list of tests into one object of lists.

    Raises ValueError if a test has no input or output, or if the tests name different functions.
    """
    tests = [case for case in cases if isinstance(case, dict) and {"input", "output"} <= case.keys()]
    names = {json.dumps(test.get("fn_name") or None) for test in tests}
    if len(tests) != len(cases) or len(names) > 1:
        raise ValueError("a test has no input or no output, or the tests call different functions")
    return {
        "inputs": [test["input"] for test in tests],
        "outputs": [test["output"] for test in tests],
        "fn_name": json.loads(names.pop()) if names else None,
    }


def _read_text(name: str, value: JsonValue) -> str:
    """Read a standard input or output, which is a string or a list of lines. Raises ValueError if it is neither."""
    lines = value if isinstance(value, list) else [value]
    texts = [line for line in lines if isinstance(line, str)]
    if len(texts) != len(lines):
        raise ValueError(f"{name} of a test is neither a string nor a list of strings")
    text = "\n".join(texts)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} of a test cannot be encoded as UTF-8: {error.reason}") from error
    return text


def _read_call(raw: JsonValue, expected: JsonValue) -> tuple[JsonValue, JsonValue]:
    """Read the arguments and the expected result of a function call. Raises ValueError if they do not parse."""
    if isinstance(raw, list):
        return raw, expected
    if not isinstance(raw, str):
        raise ValueError("the input of a function is neither a list of arguments nor a string")
    arguments: list[JsonValue] = [_parse("an argument of a test", line) for line in raw.split("\n") if line.strip()]
    return arguments, _parse("an output of a test", expected) if isinstance(expected, str) else expected


def _parse(name: str, text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not valid JSON: {text!r:.60}") from error
    return value
