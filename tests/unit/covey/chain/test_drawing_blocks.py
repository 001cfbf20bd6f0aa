"""Drawing blocks of many countersignatures, which become final together, take few requests."""

from typing import Any

import pytest

from covey.chain.drawing_blocks import find_first_blocks
from covey.chain.node_answers import Block
from tests.fakes.pool import make_hash

pytestmark = pytest.mark.unit


class Chain:
    """Fake chain with a block every 12 s."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def get_block(self, number: int) -> Block:
        self.asked.append(number)
        return Block(
            number=number, hash=make_hash(f"{number}"), parent_hash=make_hash(f"{number - 1}"),
            timestamp=1000 + 12 * number, base_fee=0,
        )  # fmt: skip


def test_find_first_blocks__400_times_within_64_blocks__read_each_block_once():
    """Without the cache, thousands of sequential requests would delay all jobs of the coordinator for minutes."""
    chain: Any = Chain()
    head = chain.get_block(10_000)
    times = [head.timestamp - 768 + 2 * i for i in range(400)]
    blocks = find_first_blocks(chain, times, head=head)
    assert {time: block.number for time, block in blocks.items()} == {
        time: (time - 1000 + 11) // 12 for time in times if time <= head.timestamp
    }
    assert len(chain.asked) == len(set(chain.asked)) <= 128
