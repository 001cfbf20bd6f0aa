"""Sizes of requests for logs, found by refusals of any wording."""

import pytest

from covey.chain.log_ranges import GROW_AFTER, LogRanges
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


@pytest.mark.parametrize("code", ["chain_refused", "chain_unreachable", "chain_unreadable"])
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


def test_fit__accepted_often__tries_twice_the_size():
    node = LimitedNode(100)
    ranges = LogRanges(node)
    assert ranges.fit(node.read, most=1000) == 62
    node.limit = 1000
    sizes = [ranges.fit(node.read, most=1000) for _ in range(2 * GROW_AFTER + 1)]
    assert sizes == [62] * GROW_AFTER + [124] * GROW_AFTER + [248]


def test_fit__shorter_range_than_remembered__does_not_change_the_size():
    node = LimitedNode(100)
    ranges = LogRanges(node)
    ranges.fit(node.read, most=1000)
    assert ranges.fit(node.read, most=3) == 3
    assert ranges.fit(node.read, most=1000) == 62
