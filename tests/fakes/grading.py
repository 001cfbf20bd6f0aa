"""Grading without a process around it."""

from collections.abc import Sequence

from covey.environments.base import Environment, Grade, Grader, Reply
from covey.environments.registry import DEMO, load


def grade_with(environment: Environment) -> Grader:
    """A grader that calls the environment in this process."""
    return lambda replies: [environment.grade(reply) for reply in replies]


def grade_here(replies: Sequence[Reply]) -> Sequence[Grade]:
    """The demo's grader without a process around it."""
    return grade_with(load(DEMO))(replies)


def grade_text(environment: Environment, draw: int, text: str, *, finished: bool = True, tokens: int = 9) -> float:
    """Reward of a text for the prompt of a draw."""
    return environment.grade(environment.prompt(draw).build_reply(text, finished=finished, tokens=tokens)).reward
