"""An environment from Python rows and a Python function, for runs on one machine.

The function is the user's own and grades in this process. Pools use kinds instead, whose grading any peer can repeat.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from covey.environments.base import Grade, JsonObject, Reply, Task, TaskSource
from covey.environments.environment import TaskEnvironment, build_refusal, split_options
from covey.environments.task_draws import draw_below
from covey.errors import OperatorError

RewardFunction = Callable[[str, Mapping[str, Any]], float]
"""Function of a completion's text and its row. It returns the reward, any finite number."""
KIND = "python"
HELD_OUT = 8
"""One row in this number is held out for evaluations, as in data sets."""


class PythonRows(TaskSource):
    """Rows with a "prompt", of which every eighth is held out. A row may also have a "system" message."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check the rows. Raises OperatorError("bad_rows")."""
        self._rows = [_check(number, row) for number, row in enumerate(rows)]
        if len(self._rows) < 2:
            raise OperatorError(
                "bad_rows", f"the data set has {len(self._rows)} rows", fix="Pass at least two rows, one to hold out"
            )
        self._training = [row for number, row in enumerate(self._rows) if not self._is_held_out(number)]

    def draw(self, number: int) -> Task:
        """Return the task of the training row that a drawn integer selects."""
        return self._build(self._training[draw_below("row", number, len(self._training))])

    def held_out(self, n: int) -> list[Task]:
        """Return the first `n` held-out tasks, or all."""
        return [self._build(row) for number, row in enumerate(self._rows) if self._is_held_out(number)][:n]

    def grade(self, verification: JsonObject, answer: str) -> float:
        """Rows are graded by `PythonEnvironment`, which sees the whole completion."""
        raise NotImplementedError

    def _is_held_out(self, number: int) -> bool:
        """Return whether a row is one of every eight, or the last one of fewer rows."""
        return number % HELD_OUT == HELD_OUT - 1 if len(self._rows) >= HELD_OUT else number == len(self._rows) - 1

    def _build(self, row: Mapping[str, Any]) -> Task:
        return Task(question=row["prompt"], system=str(row.get("system", "")), verification=dict(row))


class PythonEnvironment(TaskEnvironment):
    """Environment whose rewards a Python function computes. Example: PythonEnvironment(rows, reward)."""

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], reward: RewardFunction, options: JsonObject | None = None
    ) -> None:
        """Check the rows and the options, which are those that every kind has.

        Raises OperatorError("bad_rows") or OperatorError("bad_environment").
        """
        shared, others = split_options(options or {})
        if others:
            raise build_refusal(f"the environment {KIND} has no option {', '.join(others)}")
        super().__init__(PythonRows(rows), shared)
        self._reward = reward

    def grade(self, reply: Reply) -> Grade:
        """Return what the function computes for a completion, which may have been cut at the token limit.

        An error of the function ends the run, with its own traceback. Raises OperatorError("bad_reward") if the value
        is not a finite number.
        """
        value = self._reward(reply.text, reply.verification)
        if not isinstance(value, Real) or not math.isfinite(value):
            raise OperatorError(
                "bad_reward",
                f"the reward function returned {value!r:.100} for the completion {reply.text[:200]!r}",
                fix="Correct the function, which must return a finite number for every completion",
            )
        return Grade(reward=float(value), parts={"task": float(value)})

    def has_answer(self, reply: Reply) -> bool:
        """Return whether the completion has any text."""
        return bool(reply.text.strip())


def _check(number: int, row: object) -> Mapping[str, Any]:
    if not isinstance(row, Mapping) or not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
        raise OperatorError(
            "bad_rows", f'row {number} has no text under "prompt"', fix='Pass rows such as {"prompt": "1 + 1 = ?"}'
        )
    return row
