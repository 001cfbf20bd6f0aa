"""A second score of an evaluation, for answers that a more lenient extraction finds."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from covey.environments import mixture, registry
from covey.environments.base import Environment, EnvironmentSpec, Grade, Grader, Reply
from covey.environments.python_rewards import KIND
from covey.errors import OperatorError


@dataclass(slots=True)
class TwoScores:
    """Grader that returns the grades of `strict` and keeps the mean reward of `lenient` for the same replies."""

    strict: Grader
    lenient: Grader
    mean: float = field(default=0.0, init=False)
    """Mean reward of the last replies by the lenient grader."""

    def __call__(self, replies: Sequence[Reply]) -> list[Grade]:
        self.mean = sum(grade.reward for grade in self.lenient(replies)) / len(replies)
        return list(self.strict(replies))


def load_lenient(spec: EnvironmentSpec, extraction: str) -> tuple[EnvironmentSpec, Environment]:
    """Return an environment that takes answers by another extraction. It only grades, so it opens no data set.

    Raises OperatorError("bad_environment") if there is no such extraction, or OperatorError("bad_settings") for a
    mixture, whose parts have extractions of their own.
    """
    if spec.kind in (mixture.KIND, KIND):
        raise OperatorError(
            "bad_settings",
            f"eval.lenient_extraction is {extraction}, but answers of {spec.kind} cannot be graded a second time",
            fix="Remove eval.lenient_extraction, or use one kind of environment without a reward function",
        )
    changed = EnvironmentSpec(kind=spec.kind, options={**spec.options, "extraction": extraction})
    return changed, registry.load(changed)
