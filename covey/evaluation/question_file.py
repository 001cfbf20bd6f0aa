"""The questions of an evaluation, written to one file and read from there one at a time.

Main names: `write_questions`, `QuestionFile`. A line holds the prompt of a question and what grades its answer, so
everything that is asked can be looked up later. The digest covers all lines, the environments that grade them, and the
numbers of rows that are not asked. Rows may have megabytes of tests, so only positions stay in memory.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from covey.environments.base import DataSets, EnvironmentSpec, JsonObject, Prompt, Task, refuse_data_sets
from covey.environments.environment import TaskEnvironment
from covey.environments.kinds.dataset_rows import RowSource
from covey.environments.registry import load
from covey.errors import OperatorError
from covey.evaluation.evaluation_config import TaskChoice
from covey.evaluation.row_layouts import LAYOUTS, AskedRow, RowLayout, find_layout, read_date
from covey.tasks.dataset_row import BadRowError
from covey.tasks.sources import SourceRow, read_sources

NO_DATA_SET = "0x" + "0" * 64
"""Digest in the options of environments whose rows come from a file. It is never opened."""
DEFAULT_ITEMS = 200
"""Number of questions of an environment kind, unless a number is set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedQuestion:
    """One question as it is asked."""

    name: str
    """Name of the question in its source. Empty if it has none."""
    part: int
    """Index of the environment that grades it, in `QuestionFile.specs`."""
    prompt: Prompt
    labels: Mapping[str, str]
    """Groups of the question, for example {"level": "5"}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionFile:
    """The questions of an evaluation. Example: `write_questions(...).read(0).prompt.text`."""

    path: Path
    offsets: tuple[int, ...]
    """Position of each question's line in bytes."""
    specs: tuple[EnvironmentSpec, ...]
    """Environments that grade the questions."""
    layout: str
    """Name of the rows' layout. Empty if an environment kind supplied the questions."""
    skipped: Mapping[str, int]
    """Number of rows that are not asked, by reason."""
    digest: str
    """SHA-256 of all that prompts and grades depend on, except versions of packages."""

    def __len__(self) -> int:
        return len(self.offsets)

    def move(self, path: Path) -> Self:
        """Rename the file, and return the questions at the new path."""
        self.path.replace(path)
        return replace(self, path=path)

    def read(self, index: int) -> AskedQuestion:
        """Return question `index`, counted from 0."""
        with self.path.open("rb") as file:
            file.seek(self.offsets[index])
            values = json.loads(file.readline())
        prompt = Prompt(**{name: values[name] for name in ("text", "system", "target", "verification")})
        return AskedQuestion(name=values["name"], part=values["part"], prompt=prompt, labels=values["labels"])


def write_questions(choice: TaskChoice, path: Path, *, data_sets: DataSets, is_lenient: bool = False) -> QuestionFile:
    """Write the chosen questions to `path` and return them.

    `data_sets` opens data sets that an environment kind draws from. With `is_lenient`, rows that cannot be read or
    graded are counted as skipped. Otherwise they raise OperatorError("bad_row"). Raises OperatorError("no_questions")
    if nothing is left to ask.
    """
    specs, skipped, offsets = list[EnvironmentSpec](), Counter[str](), list[int]()
    layout = None if choice.file is None else _choose_layout(choice.file, choice.format)
    if layout is None:
        questions = _ask_kind(choice, specs, data_sets)
    else:
        questions = _ask_rows(choice, layout, specs, skipped, is_lenient=is_lenient)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for question in questions:
            line = json.dumps(_describe(question)).encode() + b"\n"
            offsets.append(file.tell())
            digest.update(line)
            file.write(line)
    if not offsets:
        counts = ", ".join(f"{count} rows with {reason}" for reason, count in skipped.items()) or "no rows"
        raise OperatorError(
            "no_questions",
            f"there is nothing to ask in {choice.file or choice.kind}: {counts}",
            fix="Choose other tasks, or correct --format, --since and --until",
        )
    kinds = [{"kind": spec.kind, "options": dict(spec.options)} for spec in specs]
    digest.update(json.dumps({"environments": kinds, "skipped": skipped}, sort_keys=True).encode())
    return QuestionFile(
        path=path,
        offsets=tuple(offsets),
        specs=tuple(specs),
        layout="" if layout is None else layout.name,
        skipped=dict(skipped),
        digest=digest.hexdigest(),
    )


def _describe(question: AskedQuestion) -> JsonObject:
    prompt = question.prompt
    return {
        "name": question.name,
        "part": question.part,
        "text": prompt.text,
        "system": prompt.system,
        "target": prompt.target,
        "verification": dict(prompt.verification),
        "labels": dict(question.labels),
    }


def _ask_kind(choice: TaskChoice, specs: list[EnvironmentSpec], data_sets: DataSets) -> Iterator[AskedQuestion]:
    """Yield the held-out questions of an environment kind."""
    spec = EnvironmentSpec(kind=choice.kind or "", options=choice.options)
    environment = load(spec, data_sets)
    specs.append(spec)
    for prompt in environment.held_out(choice.items or DEFAULT_ITEMS):
        yield AskedQuestion(name="", part=0, prompt=prompt, labels={})


def _ask_rows(
    choice: TaskChoice, layout: RowLayout, specs: list[EnvironmentSpec], skipped: Counter[str], *, is_lenient: bool
) -> Iterator[AskedQuestion]:
    """Yield the questions of the rows of a file, and count the rows that are not asked."""
    environments: dict[str, TaskEnvironment] = {}
    asked = 0
    for row in read_sources([str(choice.file)]):
        if asked == choice.items:
            return
        try:
            question = _read_row(row, layout, choice)
        except BadRowError as error:
            if not is_lenient:
                raise OperatorError(
                    "bad_row", f"{row.place}: {error.message}", fix="Correct the row, or skip it with --skip-bad"
                ) from error
            question = "an error"
        if isinstance(question, str):
            skipped[question] += 1
            continue
        if question.kind not in environments:
            specs.append(_build_spec(question.kind, layout, choice))
            environments[question.kind] = _load_rows(specs[-1])
        environment = environments[question.kind]
        asked += 1
        yield AskedQuestion(
            name=question.name,
            part=list(environments).index(question.kind),
            prompt=environment.build_prompt(_build_task(environment, question)),
            labels=question.labels,
        )


def _read_row(row: SourceRow, layout: RowLayout, choice: TaskChoice) -> AskedRow | str:
    """Return a row as it is asked, or the reason why it is not. Raises BadRowError if it cannot be read."""
    if isinstance(row.values, BadRowError):
        raise row.values
    try:
        if choice.since or choice.until:
            date = read_date(row.values)
            if date is None:
                raise ValueError("the row has no contest_date, which --since and --until need")
            if (choice.since and date < choice.since) or (choice.until and date > choice.until):
                return "a contest date outside the window"
        return layout.find_obstacle(row.values) or layout.read(row.values)
    except (ValueError, TypeError, LookupError) as error:
        raise BadRowError(
            "bad_row",
            f"the row does not fit the layout {layout.name}: {error}",
            fix="Correct the row or --format",
        ) from error


def _build_task(environment: TaskEnvironment, row: AskedRow) -> Task:
    source, question = environment.source, row.question
    if isinstance(source, RowSource) and not row.is_whole:
        question = source.ask(question, row.verification)
    return Task(question=question, system=row.system, verification=row.verification)


def _build_spec(kind: str, layout: RowLayout, choice: TaskChoice) -> EnvironmentSpec:
    options = {**layout.options, **choice.options, "dataset": NO_DATA_SET}
    if layout.name == "hle":  # `read_exam_reply` extracts the answer
        options["extraction"] = "whole"
    return EnvironmentSpec(kind=kind, options=options)


def _load_rows(spec: EnvironmentSpec) -> TaskEnvironment:
    environment = load(spec, refuse_data_sets)
    if not isinstance(environment, TaskEnvironment):
        raise OperatorError(
            "bad_environment",
            f"rows of type {spec.kind} cannot be evaluated",
            fix="Evaluate an environment kind whose questions are rows",
        )
    return environment


def _choose_layout(file: Path, name: str | None) -> RowLayout:
    """Return the named layout, or the one that the first row of a file fits."""
    if name is not None:
        return LAYOUTS[name]
    first = next(iter(read_sources([str(file)])), None)
    if first is None or isinstance(first.values, BadRowError):
        message = f"the first row of {file} cannot be read" if first else f"{file} has no rows"
        raise OperatorError("bad_source", message, fix="Use a file of JSON lines or Parquet with one question per row")
    return find_layout(first.values)
