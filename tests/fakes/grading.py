"""Grading without a process around it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from covey.environments.base import Environment, Grade, Grader, Reply
from covey.environments.environment import TaskEnvironment
from covey.environments.grader import GradingPool
from covey.environments.grading_process import FACTORY
from covey.environments.registry import DEMO, load
from covey.protocol.params import GradingParams
from covey.runtime.settings import SandboxSettings


def grade_with(environment: Environment) -> Grader:
    """Return a grader that calls the environment in this process."""
    return lambda replies: [environment.grade(reply) for reply in replies]


def grade_here(replies: Sequence[Reply]) -> Sequence[Grade]:
    """Grade replies of the demo's environment in this process."""
    return grade_with(load(DEMO))(replies)


def grade_text(environment: Environment, draw: int, text: str, *, finished: bool = True, tokens: int = 9) -> float:
    """Return the reward of a text for the prompt of a draw."""
    return environment.grade(environment.prompt(draw).build_reply(text, finished=finished, tokens=tokens)).reward


@contextmanager
def open_grading(environment: Environment, *, factory: str = FACTORY) -> Iterator[GradingPool]:
    """Open one real grading process, also for environments that only compare texts.

    `factory` selects another function for it.
    """
    with (
        patch("covey.environments.grader.FACTORY", factory),
        patch.object(TaskEnvironment, "is_plain", lambda *_: False),
        GradingPool(DEMO, environment, GradingParams(), SandboxSettings(grading_processes=1)) as pool,
    ):
        yield pool
