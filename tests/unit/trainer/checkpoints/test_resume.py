import pytest

from covey.errors import OperatorError
from covey.protocol.ids import Step
from trainer.checkpoints.resume import require_resumable

pytestmark = pytest.mark.unit


RESUMABLE = {
    (0, 0): {0, 1}, (0, 5): {5, 6}, (1, 0): {0, 1}, (1, 1): {1, 2}, (1, 5): {4, 5, 6}, (2, 1): {1, 2},
    (2, 5): {3, 4, 5, 6},
}  # fmt: skip
"""Numbers of policies on chain with which a trainer may resume, by max_staleness and step."""


@pytest.mark.parametrize(("max_staleness", "step"), RESUMABLE)
def test_require_resumable__any_number_on_chain__is_accepted_if_a_crash_could_leave_it(
    max_staleness: int, step: int
) -> None:
    for published in range(9):
        if published in RESUMABLE[max_staleness, step]:
            require_resumable(Step(step), published, max_staleness=max_staleness)
            continue
        where = "behind" if published > step else "ahead of"
        with pytest.raises(OperatorError, match=f"{where} the chain"):
            require_resumable(Step(step), published, max_staleness=max_staleness)
