"""Sizes of requests for logs, found by refusals of any wording."""

from itertools import pairwise

import pytest

from covey.chain.log_ranges import MAX_WAIT, LogRanges
from covey.errors import TransientError

pytestmark = pytest.mark.unit


class LimitedNode:
    """A node that refuses more than `limit` blocks with an error that a test chooses."""

    def __init__(self, limit: int, error: TransientError | None = None) -> None:
        self.limit = limit
        self.error = error or TransientError("chain_refused", "the chain node refused eth_getLogs: no")
        self.is_down = False
        self.asked: list[int] = []

    def block_number(self) -> int:
        if self.is_down:
            raise TransientError("chain_unreachable", "gone")
        return 5

    def read(self, blocks: int) -> int:
        self.asked.append(blocks)
        if blocks > self.limit:
            raise self.error
        return blocks


@pytest.mark.parametrize("code", ["chain_refused", "bad_answer"])
@pytest.mark.parametrize(("limit", "first"), [(1000, 1000), (500, 500), (10, 7), (1, 1)])
def test_fit__any_refusal__is_halved_and_remembered(limit: int, first: int, code: str):
    node = LimitedNode(limit, TransientError(code, "x"))
    ranges = LogRanges(node)
    assert ranges.fit(node.read, most=1000) == first
    node.asked.clear()
    assert ranges.fit(node.read, most=1000) == first
    assert node.asked == [first]


def test_fit__one_block_is_refused__raises_the_refusal():
    node = LimitedNode(0)
    with pytest.raises(TransientError, match="chain_refused"):
        LogRanges(node).fit(node.read, most=1000)
    assert node.asked == [1000, 500, 250, 125, 62, 31, 15, 7, 3, 1]


def test_fit__node_is_down__raises_at_once():
    node = LimitedNode(0)
    node.is_down = True
    with pytest.raises(TransientError, match="chain_unreachable: gone"):
        LogRanges(node).fit(node.read, most=1000)
    assert node.asked == [1000]


def test_fit__limit_of_requests__is_not_the_ranges_fault():
    node = LimitedNode(0, TransientError("chain_refused", "the chain node refused eth_getLogs: over rate limit"))
    ranges = LogRanges(node)
    with pytest.raises(TransientError, match="rate limit"):
        ranges.fit(node.read, most=1000)
    node.limit = 1000
    assert ranges.fit(node.read, most=1000) == 1000


@pytest.mark.parametrize("code", ["no_block", "chain_moved"])
def test_fit__fault_is_not_the_ranges__is_raised_and_halves_nothing(code: str):
    node = LimitedNode(0, TransientError(code, "x"))
    ranges = LogRanges(node)
    with pytest.raises(TransientError, match=code):
        ranges.fit(node.read, most=1000)
    node.limit = 1000
    assert ranges.fit(node.read, most=1000) == 1000
    assert node.asked == [1000, 1000]


def test_fit__node_is_late__raises_at_once_and_begins_with_half_the_blocks_next_time():
    """A node that needs too long for a range would otherwise be asked for the same range forever."""
    node = LimitedNode(600, TransientError("chain_unreachable", "late"))
    ranges = LogRanges(node)
    with pytest.raises(TransientError, match="late"):
        ranges.fit(node.read, most=1000)
    assert ranges.fit(node.read, most=1000) == 500
    assert node.asked == [1000, 500]


def test_fit__node_is_down_for_long__begins_with_all_blocks_when_it_is_back():
    node = LimitedNode(0, TransientError("chain_unreachable", "gone"))
    node.is_down = True
    ranges = LogRanges(node)
    for _ in range(20):
        with pytest.raises(TransientError, match="gone"):
            ranges.fit(node.read, most=1000)
    node.limit, node.is_down = 1000, False
    assert ranges.fit(node.read, most=1000) == 1000


def test_fit__passing_fault_halved_to_one_block__recovers_in_about_ten_requests():
    node = LimitedNode(1, TransientError("bad_answer", "garbage"))
    ranges = LogRanges(node)
    assert ranges.fit(node.read, most=1000) == 1
    node.limit = 1000
    assert [ranges.fit(node.read, most=1000) for _ in range(12)] == [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]


def test_fit__limit_that_stays__is_tried_less_and_less_often():
    node = LimitedNode(100)
    ranges = LogRanges(node)
    ranges.fit(node.read, most=1000)
    node.asked.clear()
    for _ in range(200):
        assert ranges.fit(node.read, most=1000) == 62
    refusals = [at for at, blocks in enumerate(node.asked) if blocks == 124]
    between = [after - before - 1 for before, after in pairwise(refusals)]
    # The first request between two refusals belongs to the refused call.
    assert (refusals[0], between) == (2, [1 + 4, 1 + 8, *[1 + MAX_WAIT] * 10])


def test_fit__shorter_range_than_remembered__does_not_change_the_size():
    node = LimitedNode(100)
    ranges = LogRanges(node)
    ranges.fit(node.read, most=1000)
    assert ranges.fit(node.read, most=3) == 3
    assert ranges.fit(node.read, most=1000) == 62
