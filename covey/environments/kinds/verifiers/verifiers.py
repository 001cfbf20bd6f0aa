"""Single-turn tasksets of the package verifiers 0.4, through its v1 interface: `Taskset`, `Task` and `Trace`.

A subprocess, run by the Python that has the package, lists the tasks once. The pool's options contain their
hash. The verification data of a task contains its data, so that a grading process can rebuild the task
without a data set. Grading processes run the same Python and import the package before the first reply. Each
grade is computed in its own fork (docs/decisions/043-tasksets-of-verifiers.md).
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from covey.environments.base import DataSets, GradingPython, JsonObject, Task, TaskSource
from covey.environments.environment import build_refusal, refuse_options
from covey.environments.kinds.verifiers.verifiers_process import (
    TasksetRequest,
    TasksetRow,
    ask_tasks,
    ask_versions,
    find_interpreter,
    translate,
)
from covey.environments.kinds.verifiers.verifiers_server import Scorer, TasksetRefusal, find_module
from covey.environments.task_draws import draw_below, is_held_out
from covey.errors import OperatorError

FORBIDDEN_SETTINGS = frozenset({"fn", "judges", "metrics", "rewards", "stops", "system_prompt"})
"""Settings that could make verifiers import code, query a model or read a file. A pool may not use them."""
_PATH = re.compile(r"^[/~]|\\|://|(^|/)\.\.(/|$)|\.py(:|$)")


class VerifiersOptions(BaseModel):
    """Options of kind "verifiers". Example: {"taskset": "gsm8k", "config": {}, "data_hash": "0x..."}."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    taskset: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=128)
    """Id of the taskset. It is the name of the installed package that contains the taskset."""
    config: dict[str, JsonValue] = {}
    """Settings of the taskset. The taskset's defaults apply to all others. Paths, URLs and plugged-in functions
    are rejected.
    """
    data_hash: str
    """SHA-256 of the hashes of all tasks, with 0x. If it is wrong, the error message contains the correct one."""
    tasks: int | None = Field(default=None, ge=1)
    """Number of tasks to use, counted from the first. None means all, which must be at most 100,000. An infinite
    taskset requires a number.
    """
    held_out: list[int] | None = None
    """Indexes of the held-out tasks, counted from 0. None means that a hash of the question selects about one
    question in eight.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class _Splits:
    train: Sequence[TasksetRow]
    held_out: Sequence[TasksetRow]


class VerifiersSource(TaskSource):
    """Task source for one taskset. A grade is the weighted sum of rewards that verifiers computes."""

    extraction: ClassVar[str] = "whole"
    requires_isolation: ClassVar[bool] = True  # nothing keeps a taskset from executing code that a model wrote

    def __init__(self, options: JsonObject, data_sets: DataSets) -> None:
        """Check and keep the options. Raises OperatorError("bad_environment") if they are invalid."""
        try:
            self._options = VerifiersOptions.model_validate(dict(options))
        except ValidationError as error:
            raise refuse_options("verifiers", error, VerifiersOptions) from error
        # Strangers write a pool's parameters, so no taskset may open files or addresses that they name.
        for name, text in _list_texts(self._options.config):
            if name in FORBIDDEN_SETTINGS:
                raise build_refusal(
                    f"the config of the taskset {self._options.taskset!r} sets {name}, which is not allowed in a pool"
                )
            if _PATH.search(text):
                raise build_refusal(
                    f"the config of the taskset {self._options.taskset!r} contains the path or URL "
                    f"{text!r}, which is not allowed"
                )
        self._named: Path | None = None

    def use_interpreter(self, interpreter: Path) -> None:
        """Draw and grade with the Python interpreter that the role's settings specify."""
        self._named = interpreter

    @property
    def grading_python(self) -> GradingPython:
        """The Python that has verifiers, and the taskset's package.

        Raises OperatorError("no_verifiers") if no Python has verifiers.
        """
        interpreter = find_interpreter(self._named)
        is_own = interpreter == Path(sys.executable)
        packages = (find_module(self._options.taskset),)
        return GradingPython(interpreter=None if is_own else interpreter, packages=packages)

    def draw(self, number: int) -> Task:
        """Return the training task for a drawn integer."""
        return _build_task(self._pick(number))

    def held_out(self, n: int) -> list[Task]:
        """Return the tasks of the first `n` different held-out questions, or of all, in the order of the taskset."""
        rows = list({row.question: row for row in reversed(self._splits.held_out)}.values())[::-1]
        return [_build_task(row) for row in rows[:n]]

    def find_system(self, number: int) -> str:
        """Return the system message of the task for a drawn integer."""
        return self._pick(number).system

    def grade(self, verification: JsonObject, answer: str) -> float:
        """Return the sum of the taskset's rewards, each times its weight, or 0 if one of them fails."""
        data = verification["task"]
        if not isinstance(data, dict):
            raise build_refusal("the verification data of a task has no task in it")
        return self._scorer.score(data, answer).reward

    def warm_up(self) -> None:
        """Import verifiers and the taskset, which takes several CPU seconds."""
        self._scorer.warm_up()

    def list_versions(self) -> Mapping[str, str]:
        """Return the versions of verifiers and of the taskset's package, by name."""
        return self._versions

    @cached_property
    def _versions(self) -> Mapping[str, str]:
        return ask_versions(find_interpreter(self._named), self._request)

    @cached_property
    def _scorer(self) -> Scorer:
        try:
            return Scorer(self._options.taskset, self._options.config)
        except TasksetRefusal as refusal:
            raise translate(refusal.code, str(refusal)) from refusal

    @cached_property
    def _splits(self) -> _Splits:
        """Training and held-out tasks, loaded once. Raises OperatorError("wrong_dataset") if their hash is wrong."""
        loaded = ask_tasks(find_interpreter(self._named), self._request)
        if loaded.data_hash != self._options.data_hash:
            raise OperatorError(
                "wrong_dataset",
                f"the taskset {self._options.taskset!r} has the data hash {loaded.data_hash} on "
                f"this machine, but the pool requires {self._options.data_hash or 'none'}",
                fix="Install the versions of the taskset and its data with which the pool was created",
            )
        return _split(loaded.rows, self._options.held_out)

    @property
    def _request(self) -> TasksetRequest:
        return TasksetRequest(taskset=self._options.taskset, config=self._options.config, tasks=self._options.tasks)

    def _pick(self, number: int) -> TasksetRow:
        rows = self._splits.train
        return rows[draw_below("task", number, len(rows))]


def _split(rows: Sequence[TasksetRow], indexes: Sequence[int] | None) -> _Splits:
    """Split tasks into training and held-out tasks, which share no question.

    Raises OperatorError("bad_environment") if `indexes` are out of range or no task is left for training.
    """
    if indexes is None:
        held_out = [row for row in rows if is_held_out(row.question)]
    elif all(0 <= index < len(rows) for index in indexes):
        held_out = [rows[index] for index in sorted(set(indexes))]
    else:
        raise build_refusal(f"held_out contains an index outside the {len(rows)} tasks of the taskset")
    questions = {row.question for row in held_out}
    train = [row for row in rows if row.question not in questions]
    if not train:
        raise build_refusal(f"all of the {len(rows)} tasks are held out, so none remains for training")
    return _Splits(train=train, held_out=held_out)


def _build_task(row: TasksetRow) -> Task:
    return Task(question=row.question, system=row.system, verification={"task": row.data})


def _list_texts(value: JsonValue, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name of the setting, string) for every string in a config, and (name, "") for every setting."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, ""
            yield from _list_texts(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_texts(inner, name)
    elif isinstance(value, str):
        yield name, value
