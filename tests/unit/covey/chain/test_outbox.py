import pytest

from covey.chain.finality import REFUSED_BLOCKS
from covey.chain.outbox import Refusal

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([10], False),
        ([10] * 20, False),
        ([10, 18], False),  # two heads
        ([10, 11, 17], False),  # too few blocks
        ([10, 11, 18], True),
        ([10, 11, 9, 9, 12, 18], True),  # a node that lags shows an old head, which counts nothing
        ([10, 9, 18], False),
    ],
)
def test_refusal__seen_at_several_heads_some_blocks_apart__stands(blocks: list[int], expected: bool):
    assert REFUSED_BLOCKS == 8
    refusal = Refusal.at(blocks[0])
    for block in blocks[1:]:
        refusal = refusal.repeat(block)
    assert refusal.stands is expected
