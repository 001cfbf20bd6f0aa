"""Which policies stay on disk while later steps are learned."""

from types import SimpleNamespace
from typing import cast

import pytest

from covey.protocol.ids import Step
from trainer.context import LearningContext
from trainer.train_step import is_needed

pytestmark = pytest.mark.unit


def list_needed(newest: int, *, staleness: int = 0, beta: float = 0.0, considered: int = 9) -> list[int]:
    """Return the policies that are needed of a run in which 5 is unpublished and 6 waits for its evaluation."""
    context = SimpleNamespace(
        config=SimpleNamespace(loss=SimpleNamespace(beta=beta)),
        params=SimpleNamespace(max_staleness=staleness),
        progress=SimpleNamespace(considered=considered),
        background=SimpleNamespace(waiting=(6,)),
        requires=lambda version: version == 5,
    )
    policies = map(Step, range(newest + 1))
    return [each for each in policies if is_needed(cast(LearningContext, context), each, Step(newest))]


def test_is_needed__by_hand() -> None:
    assert list_needed(9) == [5, 6, 9]
    assert list_needed(9, staleness=2) == [5, 6, 7, 8, 9]
    assert list_needed(9, beta=0.1) == [0, 5, 6, 9]
    assert list_needed(9, considered=7) == [5, 6, 8, 9]  # nobody has looked yet whether 8 is due for an evaluation
