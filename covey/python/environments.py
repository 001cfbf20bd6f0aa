"""`covey.Environment`: questions and grades of any kind of environment, for scripts and notebooks."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from covey.environments import base
from covey.environments.base import Grade, Prompt
from covey.environments.grader import GradingPool
from covey.network.entry import get_spec
from covey.protocol.params import TrainingParams
from covey.standalone.config import DataSection, TrainConfig
from covey.standalone.preparation import find_questions


class Environment:
    """Questions of an environment, and a sandbox that grades answers. Close it, or use it as a context manager.

    Example: `with covey.Environment("reasoning_gym:chain_sum") as sums: sums.grade(sums.prompt(7), "12")`.
    """

    def __init__(self, kind: str | None = None, *, dataset: str | Path | None = None, **options: Any) -> None:
        """Open an environment by its kind, for example "math" with the rows of `dataset`.

        `options` are the environment's own. Raises OperatorError, whose `fix` says what to do.
        """
        data = DataSection(environment=kind, options=options, dataset=None if dataset is None else Path(dataset))
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="covey-environment-"))
            config = TrainConfig(home=Path(folder), data=data)
            questions = find_questions(config)
            self._environment: base.Environment = questions.load()
            params = TrainingParams(environment=questions.params)
            self._grading = stack.enter_context(
                GradingPool(get_spec(params), self._environment, params.grading, config)
            )
            self._stack = stack.pop_all()

    def prompt(self, number: int) -> Prompt:
        """Return the training question that an integer draws: its `text`, `system` message and `verification` data."""
        return self._environment.prompt(number)

    def held_out(self, n: int) -> list[Prompt]:
        """Return the first `n` held-out questions, or all."""
        return self._environment.held_out(n)

    def grade(self, prompt: Prompt, completion: str) -> Grade:
        """Return the grade of one finished completion: its `reward` and the `parts` of it."""
        return self.grade_all([(prompt, completion)])[0]

    def grade_all(self, replies: Sequence[tuple[Prompt, str]]) -> Sequence[Grade]:
        """Return the grades of many completions, which are graded concurrently."""
        return self._grading([prompt.build_reply(text, finished=True, tokens=0) for prompt, text in replies])

    def close(self) -> None:
        """End the sandbox and remove the imported rows."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
