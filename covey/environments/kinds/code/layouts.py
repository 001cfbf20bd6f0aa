"""Reads the tests of programming tasks in the layouts of published data sets.

There are two kinds of tests: by input and output, and by assertion (`assertions`). `read_tests` converts each layout to
one form per kind. A layout that is not known is refused and never guessed, because a wrong guess fails every program.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from pydantic import JsonValue

from covey.environments.base import JsonObject
from covey.environments.kinds.code.assertions import is_source, read_assertions
from covey.environments.kinds.code.packed_tests import unpack_text
from covey.environments.kinds.code.program_outputs import MAX_INT_DIGITS, parse_value

_LANGUAGES = {"python", "python3", "py", "py3", "cpython"}
_CHECKERS = ("checker", "generated_checker", "special_judge")
"""Fields that say that a task has more than one right output."""
_NAME_KEYS = ("fn_name", "func_name", "function_name", "entry_point")
_KIND_KEYS = ("type", "testtype")
_CALLS = {"stdin": False, "stdin_stdout": False, "functional": True, "function_call": True}
"""Whether the tests call a function, by the type that published tests name."""
_HINT = re.compile(
    r"(is)?(target|call|test)?(fn|func|function|functional|method|callable|classname|signature|call|type|startercode)"
    r"(name|signature|type|based|call)?"
)
"""Fields, by name without underscores, that say that tests call a function unless they name standard input."""
_STDIN = {*(kind for kind, calls in _CALLS.items() if not calls), "stdio", "standard_input", "std", "io", "program"}
_STARTER = re.compile(r"^[ \t]*(async[ \t]+def|def|class)[ \t]+\w+", re.MULTILINE)
_READS_STDIN = re.compile(r"\binput\(|\bstdin\b|__main__")
_TEST_KEYS = {"input", "output", "metadata", *_NAME_KEYS, *_KIND_KEYS}
_LISTS_KEYS = {"inputs", "outputs", "metadata", *_NAME_KEYS, *_KIND_KEYS}
_LONG = 10**MAX_INT_DIGITS
"""Smallest integer with more than `MAX_INT_DIGITS` digits."""

Test = Mapping[str, JsonValue]


def read_tests(raw: JsonObject) -> JsonObject:
    """Convert the tests of a row.

    The result is {"inputs": [...], "outputs": [...], "fn_name": str or None}, or for assertions {"assertions": str,
    "names": [...], "prelude": str}. Raises ValueError if the tests have an unknown layout or cannot be graded.
    """
    raw = {key: value for key, value in raw.items() if value is not None}
    language = raw.get("language", "python")
    if not isinstance(language, str) or re.sub(r"[ .\d]+$|[ _-](?=\d)", "", language.lower()) not in _LANGUAGES:
        raise ValueError(f"language is {language!r:.60}, but only python can be graded")
    if raw.get("input_mode", "stdio") != "stdio":
        raise ValueError(f"input_mode is {raw['input_mode']!r:.60}, but only stdio can be graded")
    for key in _CHECKERS:
        if raw.get(key):
            raise ValueError(f"the tests need a program that checks outputs ({key}), which is not run")
    found = [
        reader for keys, reader in _LAYOUTS.items() if any(key in raw and not _is_padding(raw[key]) for key in keys)
    ]
    if not found:
        found = [reader for keys, reader in _LAYOUTS.items() if any(key in raw for key in keys)]
    if len(found) != 1:
        known = ", ".join("/".join(keys) for keys in _LAYOUTS)
        raise ValueError(f"there are tests in {len(found)} layouts, but there must be one of: {known}")
    return found[0](raw)


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Columns of a published data set that has no column `verification_info`."""

    question: str
    """Column with the question."""
    tests: tuple[str, ...]
    """Columns with the tests. A row has this layout if it has the question and the first of these."""


PUBLISHED: tuple[Columns, ...] = (
    Columns(question="query", tests=("test", "entry_point", "prompt")),  # LeetCodeDataset
    Columns(
        question="question_content", tests=("public_test_cases", "private_test_cases", "metadata")
    ),  # LiveCodeBench
    Columns(question="question", tests=("input_output",)),  # APPS, TACO
    Columns(question="problem", tests=("tests", "metadata")),  # DeepCoder
    Columns(question="text", tests=("test_list", "test_setup_code", "challenge_test_list")),  # MBPP
    Columns(question="prompt", tests=("test_list", "test_imports")),  # MBPP, sanitized
    Columns(question="prompt", tests=("test", "entry_point", "prompt")),  # HumanEval
)
"""Layouts of rows by columns. The first one that a row has is used."""


def read_columns(values: Mapping[str, object]) -> tuple[str, JsonObject]:
    """Read a row in one of the layouts `PUBLISHED`. Return its question, and its tests as `read_tests` takes them.

    The question is followed by the starter code, if the row has some, and by what the program must define. Raises
    ValueError if no layout fits.
    """
    present = {key for key, value in values.items() if value is not None}
    layout = next((each for each in PUBLISHED if {each.question, each.tests[0]} <= present), None)
    if layout is None:
        raise ValueError("verification_info is missing, and the other columns have no layout of tests that is known")
    raw = cast(
        JsonObject,
        {key: values[key] for key in ("language", "input_mode", *_CHECKERS, *layout.tests) if key in present},
    )
    tests = read_tests(raw)
    question, starter = values[layout.question], values.get("starter_code")
    if tests.get("fn_name", "") is None and isinstance(starter, str):
        _require_no_function([{"starter_code": starter}])
    if not isinstance(question, str):
        raise ValueError(f"the column {layout.question} is not a string")
    if isinstance(starter, str) and starter.strip() and starter.strip() not in question:
        question = f"{question}\n\n{starter}"
    return _name_missing(question, tests), raw


def _name_missing(question: str, tests: JsonObject) -> str:
    """Return the question, with an example or a sentence if it does not contain every name that tests use."""
    function = tests.get("fn_name")
    names = cast(list[str], tests.get("names", [] if function is None else [function]))
    if all(name in question for name in names):
        return question
    source = cast(str, tests.get("assertions", ""))
    example = next((line for line in source.split("\n") if line.startswith("assert ")), None)
    if example is not None:
        return f"{question}\n\nYour program must pass this test, among others:\n{example}"
    return f"{question}\n\nYour program must define {', '.join(names)}."


def _read_lists(raw: JsonObject) -> JsonObject:
    return _build(_split(raw), raw, raw)


def _read_cases(raw: JsonObject) -> JsonObject:
    """Read "test_cases", "tests" or "input_output": an object of lists, a list of tests or of assertions, or JSON."""
    present = [key for key in ("test_cases", "tests", "input_output") if key in raw]
    named = [key for key in present if not _is_padding(raw[key])] or present[:1]
    if len(named) != 1:
        raise ValueError(f"there are tests in both {named[0]} and {named[1]}")
    cases = raw[named[0]]
    if isinstance(cases, str):
        cases = _parse(named[0], cases)
    if isinstance(cases, list):
        cases = [case for case in cases if case is not None]
    if isinstance(cases, list) and cases and all(isinstance(case, str) for case in cases):
        return read_assertions("\n".join(cast(list[str], cases)), entry_point=_find_name([raw]) or "")
    if isinstance(cases, list):
        return _build(_check_tests(named[0], cases), raw)
    if not isinstance(cases, dict):
        raise ValueError(f"{named[0]} is neither an object nor a list of tests")
    _require_known("the tests have", cases, _LISTS_KEYS)
    return _build(_split(cases), cases, raw)


def _read_public_and_private(raw: JsonObject) -> JsonObject:
    """Read the lists of tests of LiveCodeBench. The private ones may be packed."""
    tests: list[Test] = []
    for key in ("public_test_cases", "private_test_cases"):
        cases = raw.get(key, [])
        if isinstance(cases, str):
            cases = _parse(key, cases if cases.lstrip().startswith(("[", "{")) else unpack_text(cases))
        if not isinstance(cases, list):
            raise ValueError(f"{key} is not a list of tests")
        cases = [case for case in cases if case is not None]
        tests += _check_tests(key, cases)
    return _build(tests, raw)


def _read_assertion_list(raw: JsonObject) -> JsonObject:
    """Read the lists of assertions of MBPP, whose functions have no name but that in the assertions."""
    setup = _read_strings(raw, "test_imports") + _read_strings(raw, "test_setup_code")
    tests = _read_strings(raw, "test_list") + _read_strings(raw, "challenge_test_list")
    return read_assertions("\n".join([*setup, *tests]), entry_point=_find_name([raw]) or "")


def _read_test_source(raw: JsonObject) -> JsonObject:
    """Read the source of tests: `check(candidate)` as in HumanEval, test cases of unittest, or functions `test_...`."""
    prelude = "\n".join(_read_strings(raw, "prompt"))
    if not is_source(prelude):
        prelude = ""  # the prompt is prose, and not the beginning of the program
    return read_assertions("\n".join(_read_strings(raw, "test")), entry_point=_find_name([raw]) or "", prelude=prelude)


def _read_own_assertions(raw: JsonObject) -> JsonObject:
    source, names, prelude = raw["assertions"], raw.get("names"), raw.get("prelude", "")
    if not (isinstance(source, str) and isinstance(prelude, str) and isinstance(names, list)):
        raise ValueError("assertions and prelude must be strings, and names a list")
    return read_assertions(source, names=cast(list[str], names), prelude=prelude)


_LAYOUTS: Mapping[tuple[str, ...], Callable[[JsonObject], JsonObject]] = {
    ("inputs", "outputs"): _read_lists,
    ("test_cases", "tests", "input_output"): _read_cases,
    ("public_test_cases", "private_test_cases"): _read_public_and_private,
    ("test_list", "challenge_test_list"): _read_assertion_list,
    ("test",): _read_test_source,
    ("assertions",): _read_own_assertions,
}
"""Readers of layouts, by the fields that hold the tests."""


def _split(lists: Test) -> list[Test]:
    """Split lists of inputs and outputs into tests. Raises ValueError unless both have the same length, at least 1."""
    inputs, outputs = lists.get("inputs"), lists.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError("the tests have no lists called inputs and outputs")
    if not inputs or len(inputs) != len(outputs):
        raise ValueError(
            f"the tests have {len(inputs)} inputs and {len(outputs)} outputs, but must have "
            "the same number of both, at least one"
        )
    return [{"input": given, "output": expected} for given, expected in zip(inputs, outputs, strict=True)]


def _check_tests(name: str, cases: list[JsonValue]) -> list[Test]:
    tests = [case for case in cases if isinstance(case, dict) and {"input", "output"} <= case.keys()]
    if len(tests) != len(cases):
        raise ValueError(f"a test in {name} has no input or no output")
    for test in tests:
        _require_known(f"a test in {name} has", test, _TEST_KEYS)
    return [*tests]


def _require_known(whose: str, test: Test, known: set[str]) -> None:
    """Raise ValueError if a test has a field with a value whose meaning is not known."""
    unknown = sorted(key for key, value in test.items() if key not in known and value is not None)
    if unknown:
        raise ValueError(f"{whose} the unknown field {unknown[0]!r:.60}")


def _build(tests: list[Test], *owners: JsonObject) -> JsonObject:
    """Build the result of `read_tests` from tests, and from the objects that may name the function and its type.

    Raises ValueError if the names or types contradict each other.
    """
    if not tests:
        raise ValueError("there are 0 inputs and 0 outputs, but there must be at least one")
    name = _find_name(owners)
    names = {_find_name([test]) for test in tests} - ({None} if name else set())
    if len(names) > 1 or (name and names - {name}):
        raise ValueError("the tests call different functions")
    name = name or names.pop()
    calls = {_CALLS[kind] for kind in _find_kinds(owners, tests)}
    if len(calls) > 1 or calls - {name is not None}:
        wanted = "a function, which they do not name" if name is None else "standard input, but name a function"
        raise ValueError(f"the types of the tests ask for {wanted}")
    if name is None:
        _require_no_function([*owners, *tests])
        return {
            "inputs": [_read_text("an input", test["input"]) for test in tests],
            "outputs": [_read_text("an output", test["output"]) for test in tests],
            "fn_name": None,
        }
    calls_of_name = [_read_call(test["input"], test["output"]) for test in tests]
    return {
        "inputs": [arguments for arguments, _ in calls_of_name],
        "outputs": [expected for _, expected in calls_of_name],
        "fn_name": name,
    }


def _require_no_function(objects: Iterable[Test]) -> None:
    """Raise ValueError if a field, also one in "metadata", says that the tests call a function, which has no name."""
    for item in objects:
        for key, value in [*item.items(), *_read_metadata(item).items()]:
            if not value or not _HINT.fullmatch(key.lower().replace("_", "")):
                continue
            is_stdin = isinstance(value, str) and value.lower() in _STDIN
            if key == "type":  # also the name of other things, such as how hard a task is
                is_stdin = not isinstance(value, str) or not _HINT.fullmatch(value.lower().replace("_", ""))
            if key == "starter_code":
                is_stdin = not isinstance(value, str) or not _asks_for_function(value)
            if not is_stdin:
                raise ValueError(
                    f"the tests have the field {key!r:.60} with {value!r:.60}, so they seem to call a function, "
                    f"but name none in {' or '.join(_NAME_KEYS)}"
                )


def _asks_for_function(starter: str) -> bool:
    """Return whether starter code defines a function or class and does not itself read standard input."""
    return bool(_STARTER.search(starter)) and not _READS_STDIN.search(starter)


def _read_metadata(item: Test) -> Test:
    metadata = item.get("metadata")
    if isinstance(metadata, str):
        metadata = _parse("metadata", metadata) if metadata.strip() else None
    return metadata if isinstance(metadata, dict) else {}


def _find_name(objects: Iterable[Test]) -> str | None:
    """Return the name of the function that objects agree on, directly or in their "metadata". None if there is none.

    Raises ValueError if they have different names or one that is not a name.
    """
    names: list[JsonValue] = []
    for item in objects:
        for part in (item, _read_metadata(item)):
            names += [part[key] for key in _NAME_KEYS if part.get(key) is not None and part[key] != ""]
    if not names:
        return None
    name = names[0]
    if any(other != name for other in names):
        raise ValueError("the tests call different functions")
    name = name.removeprefix("Solution().") if isinstance(name, str) else name
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"the function's name is {name!r:.60}, which is not a valid function name")
    return name


def _find_kinds(owners: Iterable[Test], tests: Iterable[Test]) -> set[str]:
    """Return the types that tests name. Raises ValueError for an unknown type of a test."""
    named = [test[key] for test in tests for key in _KIND_KEYS if test.get(key) is not None]
    unknown = [kind for kind in named if not isinstance(kind, str) or kind not in _CALLS]
    if unknown:
        raise ValueError(f"the type of a test is {unknown[0]!r:.60}, but must be one of {sorted(_CALLS)}")
    named += [owner[key] for owner in owners for key in _KIND_KEYS if owner.get(key) in _CALLS]
    return set(cast(list[str], named))


def _read_strings(raw: JsonObject, name: str) -> list[str]:
    value = raw.get(name, [])
    lines = [line for line in value if line is not None] if isinstance(value, list) else [value]
    texts = [line for line in lines if isinstance(line, str)]
    if len(texts) != len(lines):
        raise ValueError(f"{name} is neither a string nor a list of strings")
    return texts


def _is_padding(value: JsonValue) -> bool:
    """Return whether a field contains nothing, as Parquet pads the rows that lack the field."""
    if isinstance(value, list):
        return all(map(_is_padding, value))
    if isinstance(value, dict):
        return all(map(_is_padding, value.values()))
    return value is None or value == ""


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
    """Read the arguments and the expected result of a function call. Raises ValueError if they do not parse.

    If an integer has more than `MAX_INT_DIGITS` digits, both are text: one JSON value per line for the arguments, and
    JSON for the result. No role then converts the integer.
    """
    arguments, result = raw, expected
    if isinstance(raw, str):
        arguments = [_parse("an argument of a test", line) for line in raw.split("\n") if line.strip()]
        result = _parse("an output of a test", expected) if isinstance(expected, str) else expected
    if not isinstance(arguments, list):
        raise ValueError("the input of a function is neither a list of arguments nor a string")
    if _has_long(arguments) or _has_long(result):
        return "\n".join(map(_to_json, arguments)), _to_json(result)
    return arguments, result


def _has_long(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_long, value))
    if isinstance(value, dict):
        return any(map(_has_long, value.values()))
    return isinstance(value, Decimal) or (type(value) is int and abs(value) >= _LONG)


def _to_json(value: object) -> str:
    """Return JSON, in which integers of any length are digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(_to_json, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)}: {_to_json(item)}' for key, item in value.items())}}}"
    if isinstance(value, Decimal) or (type(value) is int):
        return format(Decimal(value), "f")
    return json.dumps(value)


def _parse(name: str, text: str) -> JsonValue:
    try:
        return parse_value(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not valid JSON: {text!r:.60}") from error
