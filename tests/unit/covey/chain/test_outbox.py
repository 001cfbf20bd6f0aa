import pytest

from covey.chain.finality import REFUSED_BLOCKS
from covey.chain.outbox import Refusal

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([10], False),
        ([10] * 20, False),
        ([10, 18], False),  # Only two heads.
        ([10, 11, 17], False),  # Too few blocks.
        ([10, 11, 18], True),
        ([10, 11, 9, 9, 12, 18], True),  # A lagging node shows old heads, which do not count.
        ([10, 9, 18], False),
    ],
)
def test_refusal__at_several_heads_some_blocks_apart__is_final(blocks: list[int], expected: bool):
    assert REFUSED_BLOCKS == 8
    refusal = Refusal.at(blocks[0])
    for block in blocks[1:]:
        refusal = refusal.repeat(block)
    assert refusal.stands is expected
