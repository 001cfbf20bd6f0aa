"""One row of a data set: read from the field's columns into a canonical form, and back.

Columns of the field are `problem_id, task_type, prompt, verification_info, solve_rate_*`; all others are ignored.
`verification_info` is an object or JSON text, and the kind that the task type names checks it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic import JsonValue
from pydantic_core import from_json

from covey.environments.base import JsonObject, Split
from covey.environments.registry import find_source
from covey.environments.task_draws import is_held_out
from covey.errors import CoveyError, OperatorError
from covey.protocol import canonical

MAX_ROW_BYTES = 32 << 20
"""Largest row, in bytes of canonical JSON and of one line of a source."""
ALIASES: Mapping[str, str] = {"verifiable_math": "math", "verifiable_code": "code", "prime_code": "code"}
"""Kinds by the names that published data sets give them."""
_RATE = "solve_rate_"
_COLUMNS = frozenset({"problem_id", "task_type", "prompt", "verification_info", "solve_rates"})


class BadRowError(CoveyError):
    """A row that cannot be imported.  `code` is that of the OperatorError that names file and row."""

    def __init__(self, code: str, message: str, *, fix: str) -> None:
        super().__init__(code, message)
        self.fix = fix


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRecord:
    """One task.  Example: TaskRow(problem_id="gsm-7", task_type="math", prompt="...", verification_info={...})."""

    problem_id: str
    """Name of the task in its source."""
    task_type: str
    """Kind of environment that asks and grades the task, a key of `registry.KINDS` or an entry point."""
    prompt: str
    """Text of the question."""
    verification_info: JsonObject
    """What the kind needs to grade an answer, as its `read_info` returned it."""
    solve_rates: Mapping[str, float] = field(default_factory=dict)
    """Share of right answers, from 0 to 1, by the model that gave them."""

    @property
    def split(self) -> Split:
        """Split of the row, which follows from the prompt alone."""
        return "held_out" if is_held_out(self.prompt) else "train"

    def to_bytes(self) -> bytes:
        """Canonical JSON on one line, without the line's end; raise ValueError where a value has no JSON."""
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
        """Parse what `to_bytes` wrote; raise ValueError for anything else, which may be a stranger's."""
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
                    raise ValueError("a solve rate is not a share from 0 to 1")
                return cls(
                    problem_id=problem_id,
                    task_type=task_type,
                    prompt=prompt,
                    verification_info=info,
                    solve_rates={name: float(rate) for name, rate in rates.items()},  # type: ignore[arg-type]
                )
        raise ValueError("it is not a row of a data set")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How the columns of a source are read.  Example: Reading(task_type="math", renames={"gsm8k": "math"})."""

    task_type: str | None = None
    """Task type of rows that name none.  None: such a row is an error."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Kinds by names of task types in the source; they win over `ALIASES`."""

    def build_row(self, values: Mapping[str, object]) -> TaskRecord:
        """The row of a source's columns.

        Raises BadRowError("bad_row") where something is missing or wrong, BadRowError("unknown_task_type").
        """
        prompt = values.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise _refuse("prompt is missing or not a text")
        task_type = self._read_task_type(values.get("task_type"))
        try:
            raw = _read_info(values.get("verification_info"))
            info = find_source(task_type).read_info(raw)
            row = TaskRecord(
                problem_id=_read_problem_id(values.get("problem_id"), prompt),
                task_type=task_type,
                prompt=prompt,
                verification_info=info,
                solve_rates=_read_rates(values),
            )
            size = len(row.to_bytes())
        except (ValueError, TypeError, RecursionError) as error:
            raise _refuse(f"verification_info or another column is wrong: {error}") from error
        if size > MAX_ROW_BYTES:
            raise build_too_long(size)
        return row

    def _read_task_type(self, value: object) -> str:
        named = self.task_type if value is None or value == "" else value
        if named is None:
            raise BadRowError(
                "unknown_task_type", "it has no task_type", fix="Name the type of such rows with --task-type"
            )
        task_type = self.renames.get(named, ALIASES.get(named, named)) if isinstance(named, str) else ""
        if not is_task_type(task_type):
            raise BadRowError(
                "unknown_task_type",
                f"its task_type is {named!r:.60}, which is not a kind of environment here",
                fix="Give the type its kind with --rename TYPE=KIND, install the package that has the kind,"
                " or leave such rows out with --skip-bad",
            )
        return task_type


def is_column(name: str) -> bool:
    """Whether a column of a source is read."""
    return name in _COLUMNS or name.startswith(_RATE)


@lru_cache(1024)
def is_task_type(name: str) -> bool:
    """Whether rows of this task type can be graded here, and the name can stand in the name of a file."""
    if not (name.isascii() and name.replace("_", "a").isalnum() and len(name) <= 64):
        return False
    try:
        find_source(name)
    except OperatorError:
        return False
    return True


def parse_json(data: bytes | str) -> JsonValue:
    """Parse JSON without NaN and infinity; raise ValueError.

    Not `json.loads`, whose only bound on nesting is Python's recursion limit: a library that raises it makes deep
    nesting end the process.
    """
    value: JsonValue = from_json(data, allow_inf_nan=False)
    return value


def build_too_long(size: int) -> BadRowError:
    """The error of a row over MAX_ROW_BYTES; `size` in bytes."""
    return BadRowError(
        "row_too_long",
        f"it has {size} bytes or more, at most {MAX_ROW_BYTES} are allowed",
        fix="Shorten the row's test cases, or leave such rows out with --skip-bad",
    )


def _refuse(message: str) -> BadRowError:
    return BadRowError("bad_row", message, fix="Correct the row, or leave such rows out with --skip-bad")


def _read_info(value: object) -> JsonObject:
    if isinstance(value, str):
        value = parse_json(value)
    if value is None:
        raise ValueError("the answer is missing: there is no verification_info")
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


def _read_problem_id(value: object, prompt: str) -> str:
    """The source's name of a task, or one that follows from the prompt."""
    if value is None or value == "":
        return "prompt-" + hashlib.sha256(prompt.encode()).hexdigest()[:16]
    return str(value)


def _read_rates(values: Mapping[str, object]) -> dict[str, float]:
    named = values.get("solve_rates") or {}
    if not isinstance(named, dict):
        raise ValueError("solve_rates is not an object")
    rates = {str(name): rate for name, rate in named.items()}
    rates |= {name.removeprefix(_RATE): rate for name, rate in values.items() if name.startswith(_RATE)}
    read = {}
    for name, rate in rates.items():
        if rate is None:
            continue
        if not _is_rate(rate):
            raise ValueError(f"the solve rate {name} is {rate!r:.40}, which is not a share from 0 to 1")
        read[name] = float(rate)
    return read


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
