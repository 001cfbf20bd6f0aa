"""One row of a data set: parsed from the columns of published data sets into a canonical form, and back.

These columns are `problem_id`, `task_type`, `prompt`, `verification_info` and `solve_rate_*`. All others are ignored.
`verification_info` is an object, JSON text or a Python literal, and the environment kind checks it. Without that
column, the kind reads the row in a layout that it knows (`TaskSource.read_columns`).
"""

import ast
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import cast

from pydantic import JsonValue
from pydantic_core import from_json

from covey.environments.base import JsonObject, Split
from covey.environments.registry import find_source
from covey.environments.task_draws import is_held_out
from covey.errors import CoveyError, OperatorError
from covey.protocol import canonical

MAX_ROW_BYTES = 32 << 20
"""Maximum size of a row in bytes, as canonical JSON and as one line of a source."""
ALIASES: Mapping[str, str] = {
    "verifiable_math": "math",
    "verifiable_code": "code",
    "prime_code": "code",
    "prime_rl_code": "code",
}
"""Environment kinds by the names that published data sets use for them."""
_IDS = ("problem_id", "task_id", "question_id")
"""Columns with the name of a task, in order of preference."""
_RATE = "solve_rate_"
_LONG_INTEGER = re.compile(r"[0-9]{4301,}")
"""An integer with more digits than Python converts (`sys.int_info.default_max_str_digits`)."""
_INFO = "verification_info"
_COLUMNS = frozenset({"task_type", "prompt", _INFO, "solve_rates", *_IDS})


class BadRowError(CoveyError):
    """A row that cannot be imported. An OperatorError with the same `code` then adds the file and the row."""

    def __init__(self, code: str, message: str, *, fix: str) -> None:
        super().__init__(code, message)
        self.fix = fix


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRecord:
    """One task. Example: TaskRecord(problem_id="gsm-7", task_type="math", prompt="...", verification_info={...})."""

    problem_id: str
    """Name of the task in its source."""
    task_type: str
    """Environment kind that builds the prompt and grades the reply: a key of `registry.KINDS` or an entry point."""
    prompt: str
    """Text of the task."""
    verification_info: JsonObject
    """Data that the kind needs for grading, in the form that its `read_info` returns."""
    solve_rates: Mapping[str, float] = field(default_factory=dict)
    """Fraction of correct completions, from 0 to 1, by model name."""

    @property
    def split(self) -> Split:
        """Split of the row. It depends only on the prompt."""
        return "held_out" if is_held_out(self.prompt) else "train"

    def to_bytes(self) -> bytes:
        """Return canonical JSON on one line, without the newline. Raises ValueError if a value has no JSON form."""
        return canonical.to_bytes(
            {
                "problem_id": self.problem_id,
                "task_type": self.task_type,
                "prompt": self.prompt,
                "verification_info": self.verification_info,
                "solve_rates": dict(self.solve_rates),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "TaskRecord":
        """Parse the output of `to_bytes`. Raises ValueError for anything else, because peers may send the bytes."""
        match parse_json(data):
            case {
                "problem_id": str(problem_id),
                "task_type": str(task_type),
                "prompt": str(prompt),
                "verification_info": dict(info),
                "solve_rates": dict(rates),
                **others,
            } if not others:
                if not all(_is_rate(rate) for rate in rates.values()):
                    raise ValueError("a solve rate is not a number from 0 to 1")
                return cls(
                    problem_id=problem_id,
                    task_type=task_type,
                    prompt=prompt,
                    verification_info=info,
                    solve_rates={name: float(rate) for name, rate in rates.items()},  # type: ignore[arg-type]
                )
        raise ValueError("the bytes are not a valid row of a data set")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Options for reading the columns of a source. Example: Reading(task_type="math", renames={"gsm8k": "math"})."""

    task_type: str | None = None
    """Task type for rows without their own. None means that such a row is an error."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Environment kinds by the source's task type names. They take precedence over `ALIASES`."""

    def build_row(self, values: Mapping[str, object]) -> TaskRecord:
        """Build the row from a source's columns.

        Raises BadRowError("bad_row") if a column is missing or wrong, BadRowError("unknown_task_type") if the kind is
        unknown, and BadRowError("row_too_long") if the row exceeds `MAX_ROW_BYTES`.
        """
        task_type = self._read_task_type(values.get("task_type"))
        source = find_source(task_type)
        try:
            if values.get("verification_info") is None:
                prompt, raw = source.read_columns(values)
            else:
                prompt, raw = cast(str, values.get("prompt")), _read_info(values["verification_info"])
            if not isinstance(prompt, str) or not prompt.strip():
                raise ValueError("the column prompt is missing, blank or not a string")
            info = source.read_info(raw)
            row = TaskRecord(
                problem_id=_read_problem_id(values, prompt),
                task_type=task_type,
                prompt=prompt,
                verification_info=info,
                solve_rates=_read_rates(values),
            )
            size = len(row.to_bytes())
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            raise _refuse(f"a column is invalid: {error}") from error
        if size > MAX_ROW_BYTES:
            raise build_too_long(size)
        return row

    def _read_task_type(self, value: object) -> str:
        named = self.task_type if value is None or value == "" else value
        if named is None:
            raise BadRowError(
                "unknown_task_type",
                "the row has no task_type, and no default is set",
                fix="Set the type of these rows with --task-type, or with --environment of covey init pool",
            )
        task_type = self.renames.get(named, ALIASES.get(named, named)) if isinstance(named, str) else ""
        if not is_task_type(task_type):
            raise BadRowError(
                "unknown_task_type",
                f"task_type is {named!r:.60}, which is not an environment kind on this machine",
                fix="Map the type to an environment kind with covey tasks import --rename TYPE=KIND, install the "
                "package that provides the kind, or skip these rows with covey tasks import --skip-bad",
            )
        return task_type


def list_columns(names: Collection[str]) -> list[str]:
    """Return the columns of a source that Covey reads. Without `verification_info`, any of them may hold the tests."""
    if _INFO not in names:
        return [*names]
    return [name for name in names if name in _COLUMNS or name.startswith(_RATE)]


@lru_cache(1024)
def is_task_type(name: str) -> bool:
    """Return whether this process can grade rows of this task type, and its name is safe in a file name."""
    if not (name.isascii() and name.replace("_", "a").isalnum() and len(name) <= 64):
        return False
    try:
        find_source(name)
    except OperatorError:
        return False
    return True


def parse_json(data: bytes | str) -> JsonValue:
    """Parse JSON without NaN and Inf. Raises ValueError for anything else.

    `json.loads` is not used, because its only limit on nesting is Python's recursion limit. If a library raises that
    limit, deep nesting crashes the process.
    """
    value: JsonValue = from_json(data, allow_inf_nan=False)
    return value


def parse_source_json(data: bytes | str) -> JsonValue:
    """Parse JSON of a source as `parse_json` does, but with integers of any length.

    An integer of more digits than Python converts becomes a Decimal. Raises ValueError for anything else.
    """
    try:
        return parse_json(data)
    except ValueError:
        text = data if isinstance(data, str) else data.decode()
        shorter = _LONG_INTEGER.sub("1", text)
        if shorter == text:
            raise
        parse_json(shorter)  # checks the nesting, which `json.loads` does not
        value: JsonValue = json.loads(
            text, parse_int=lambda digits: Decimal(digits) if _LONG_INTEGER.search(digits) else int(digits)
        )
        return value


def build_too_long(size: int) -> BadRowError:
    """Build the error for a row of at least `size` bytes, which exceeds `MAX_ROW_BYTES`."""
    return BadRowError(
        "row_too_long",
        f"the row has at least {size} bytes, but at most {MAX_ROW_BYTES} are allowed",
        fix="Shorten the row's test cases, or skip these rows with covey tasks import --skip-bad",
    )


def _refuse(message: str) -> BadRowError:
    return BadRowError("bad_row", message, fix="Correct the row, or skip these rows with covey tasks import --skip-bad")


def _read_info(value: object) -> JsonObject:
    if isinstance(value, str):
        # SYNTHETIC-1 has Python literals in place of JSON.
        value = ast.literal_eval(value) if value.startswith("{'") else parse_source_json(value)
    if not isinstance(value, dict):
        raise ValueError("verification_info is not an object")
    # Parquet and the package datasets fill the keys that a row lacks with null.
    return {key: item for key, item in value.items() if item is not None}


def _read_problem_id(values: Mapping[str, object], prompt: str) -> str:
    """Return the source's id of a task, or one derived from the prompt."""
    named = [values[name] for name in _IDS if values.get(name) not in (None, "")]
    return str(named[0]) if named else "prompt-" + hashlib.sha256(prompt.encode()).hexdigest()[:16]


def _read_rates(values: Mapping[str, object]) -> dict[str, float]:
    named = values.get("solve_rates") or {}
    if not isinstance(named, dict):
        raise ValueError("solve_rates is not an object")
    rates = {str(name): rate for name, rate in named.items()}
    rates |= {name.removeprefix(_RATE): rate for name, rate in values.items() if name.startswith(_RATE)}
    checked = {}
    for name, rate in rates.items():
        if rate is None:
            continue
        if not _is_rate(rate):
            raise ValueError(f"the solve rate {name} is {rate!r:.40}, which is not a number from 0 to 1")
        checked[name] = float(rate)
    return checked


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
