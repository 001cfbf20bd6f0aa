"""Rows of published benchmarks, by layout: which columns hold the question, the answer and what groups the results.

Main names: `LAYOUTS`, `find_layout`. A row becomes an `AskedRow`, whose `verification` an environment kind grades, or
the reason why it is not asked. A layout that fits no row is refused and never guessed.
"""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from pydantic import JsonValue

from covey.environments.base import JsonObject
from covey.environments.registry import find_source
from covey.errors import OperatorError
from covey.evaluation.exam_replies import SYSTEM_CHOICE, SYSTEM_EXACT, find_obstacle, is_formula, read_choices
from covey.tasks.dataset_row import Reading

LayoutName = Literal["gsm8k", "math", "aime", "livecodebench", "choice", "hle", "covey"]
Columns = Mapping[str, object]
BOXED = "Reason step by step, and put your final answer within \\boxed{}."
_NAMES = ("unique_id", "question_id", "problem_id", "task_id", "id")
_LABELS = ("subject", "level", "category", "difficulty", "platform", "year", "answer_type")
"""Columns, in lower case, by which results are also reported."""
_MAX_LABEL = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedRow:
    """A row as it is asked. Example: AskedRow(name="gsm8k-7", kind="math", question="...", verification={...})."""

    name: str
    """Name of the question in its source. Empty if it has none."""
    kind: str
    """Environment kind that grades the answer."""
    question: str
    """Text of the question, without instructions on the form of the answer."""
    verification: JsonObject
    """Data that grades an answer, in the form that `TaskSource.read_info` returns."""
    system: str = ""
    """System message of the layout. Empty if it has none."""
    is_whole: bool = False
    """Whether the text already has its choices, which the kind otherwise adds."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Groups of the question by column, for example {"level": "5"}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLayout:
    """One layout of rows."""

    name: LayoutName
    fits: Callable[[Columns], bool]
    """Whether a row has the columns of the layout."""
    read: Callable[[Columns], AskedRow]
    """Function that reads a row. Raises ValueError if it is malformed."""
    options: JsonObject = field(default_factory=dict)
    """Options of the environment, such as the instruction, unless an evaluation sets others."""
    find_obstacle: Callable[[Columns], str | None] = lambda _: None
    """Function that returns why a row is not asked, or None."""


def find_layout(values: Columns) -> RowLayout:
    """Return the first layout that a row fits. Raises OperatorError("unknown_layout") if there is none."""
    for layout in LAYOUTS.values():
        if layout.fits(values):
            return layout
    raise OperatorError(
        "unknown_layout",
        f"the columns {', '.join(sorted(map(str, values)))[:200]} fit no known layout of questions",
        fix=f"Set the layout with --format, one of {', '.join(LAYOUTS)}, or rename the columns",
    )


def read_date(values: Columns) -> datetime.date | None:
    """Return the contest date of a row of LiveCodeBench, or None. Raises ValueError if it is malformed."""
    value = values.get("contest_date")
    if value is None or isinstance(value, datetime.datetime):
        return value.date() if value else None
    return datetime.datetime.fromisoformat(str(value)).date()


def _read_gsm8k(values: Columns) -> AskedRow:
    truth = _read_text(values, "answer").rpartition("####")[2].strip().replace(",", "").removeprefix("$")
    return _build(values, "math", _read_text(values, "question"), {"ground_truth": truth})


def _read_math(values: Columns) -> AskedRow:
    return _build(values, "math", _read_text(values, "problem"), {"ground_truth": _read_text(values, "answer")})


def _read_aime(values: Columns) -> AskedRow:
    lowered = _lower(values)
    question = _read_text(lowered, "problem" if lowered.get("problem") else "question")
    answer = _read_integer(lowered.get("answer"))
    if answer is None:
        raise ValueError(f"answer is {lowered.get('answer')!r:.60}, which is not an integer from 0 to 999")
    return _build(lowered, "math", question, {"ground_truth": str(answer)})


def _read_livecodebench(values: Columns) -> AskedRow:
    question, raw = find_source("code").read_columns(values)
    date = read_date(values)
    labels = {} if date is None else {"month": f"{date:%Y-%m}"}
    return _build(values, "code", question, raw, labels=labels)


def _read_choice(values: Columns) -> AskedRow:
    choices, answer = values.get("choices", values.get("options")), values.get("answer_index", values.get("answer"))
    if isinstance(choices, dict):  # ARC: {"text": [...], "label": [...]} and answerKey
        answer = list(choices.get("label") or ()).index(values.get("answerKey"))
        choices = choices.get("text")
    if not isinstance(choices, list):
        raise ValueError("choices is not a list")
    raw = {"choices": cast(JsonValue, choices), "answer": cast(JsonValue, answer)}
    return _build(values, "multiple_choice", _read_text(values, "question"), raw)


def _read_hle(values: Columns) -> AskedRow:
    question, answer = _read_text(values, "question"), _read_text(values, "answer").strip()
    if values.get("answer_type") == "multipleChoice":
        verification: JsonObject = {"choices": [*read_choices(question, answer)], "right": ord(answer) - ord("A")}
        return AskedRow(
            name=_read_name(values),
            kind="multiple_choice",
            question=question,
            verification=verification,
            system=SYSTEM_CHOICE,
            is_whole=True,
            labels=_read_labels(values),
        )
    kind, field_name = ("math", "ground_truth") if is_formula(answer) else ("short_answer", "answers")
    return _build(values, kind, question, {field_name: answer}, system=SYSTEM_EXACT)


def _read_covey(values: Columns) -> AskedRow:
    row = Reading().build_row(values)
    return _build(values, row.task_type, row.prompt, row.verification_info)


def _build(
    values: Columns,
    kind: str,
    question: str,
    raw: JsonObject,
    *,
    system: str = "",
    labels: Mapping[str, str] | None = None,
) -> AskedRow:
    return AskedRow(
        name=_read_name(values),
        kind=kind,
        question=question,
        verification=find_source(kind).read_info(raw),
        system=system,
        labels=_read_labels(values) | dict(labels or {}),
    )


def _read_text(values: Columns, name: str) -> str:
    value = values.get(name)
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the column {name} is missing, blank or not a string")
    return text


def _read_name(values: Columns) -> str:
    lowered = _lower(values)
    return next((str(lowered[name]) for name in _NAMES if lowered.get(name) not in (None, "")), "")[:_MAX_LABEL]


def _read_labels(values: Columns) -> dict[str, str]:
    lowered = _lower(values)
    found = {name: lowered.get(name) for name in _LABELS}
    return {name: str(value)[:_MAX_LABEL] for name, value in found.items() if isinstance(value, str | int) and value}


def _read_integer(value: object) -> int | None:
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else None


def _lower(values: Columns) -> dict[str, object]:
    return {name.lower(): value for name, value in values.items()}


def _fits_gsm8k(values: Columns) -> bool:
    return "question" in values and "####" in str(values.get("answer"))


def _fits_aime(values: Columns) -> bool:
    lowered = _lower(values)
    return bool({"problem", "question"} & lowered.keys()) and _read_integer(lowered.get("answer")) is not None


def _fits_math(values: Columns) -> bool:
    return {"problem", "answer"} <= values.keys() and bool({"level", "subject", "unique_id"} & values.keys())


_LAYOUTS = (
    RowLayout(name="covey", fits=lambda row: {"prompt", "verification_info"} <= row.keys(), read=_read_covey),
    RowLayout(
        name="livecodebench",
        fits=lambda row: {"question_content", "public_test_cases"} <= row.keys(),
        read=_read_livecodebench,
        options={"instruction": "Answer with one Python program in a code block."},
    ),
    RowLayout(
        name="hle",
        fits=lambda row: {"question", "answer", "answer_type"} <= row.keys(),
        read=_read_hle,
        find_obstacle=find_obstacle,
    ),
    RowLayout(
        name="choice",
        fits=lambda row: "question" in row and bool({"choices", "options"} & row.keys()),
        read=_read_choice,
        options={"instruction": "Write the letter of the right choice between <answer> and </answer>."},
    ),
    RowLayout(name="gsm8k", fits=_fits_gsm8k, read=_read_gsm8k, options={"instruction": BOXED}),
    RowLayout(name="math", fits=_fits_math, read=_read_math, options={"instruction": BOXED}),
    RowLayout(name="aime", fits=_fits_aime, read=_read_aime, options={"instruction": BOXED}),
)
LAYOUTS: Mapping[str, RowLayout] = {layout.name: layout for layout in _LAYOUTS}
"""Layouts by name, in the order in which a row is compared with them."""
