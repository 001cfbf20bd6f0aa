from collections.abc import Sequence

import pytest

from covey.chain.finality import REFUSED_SECONDS
from covey.chain.outbox import Refusal

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([10], False),
        ([10] * 200, False),
        ([10, 130], False),  # Only two heads.
        ([10, 11, 129], False),  # Too early.
        ([10, 11, 130], True),
        ([10, 11, 9, 9, 12, 130], True),  # A lagging node shows old heads, which do not count.
        ([10, 9, 130], False),
        (range(10, 110, 1), False),  # Many blocks of a fast chain, in too short a time.
    ],
)
def test_refusal__at_several_heads_minutes_apart__is_final(times: Sequence[int], expected: bool):
    assert REFUSED_SECONDS == 120
    refusal = Refusal.at(times[0])
    for time in times[1:]:
        refusal = refusal.repeat(time)
    assert refusal.stands is expected
