"""Queries of past events on a node that limits the blocks of one request."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from covey.chain.events import PolicyPublished
from covey.chain.history import History
from covey.chain.node_answers import Log
from covey.errors import TransientError
from tests.unit.covey.chain.test_follower import ALICE, DEPLOYMENT, TOPIC

pytestmark = pytest.mark.unit
LENGTH = 50_000
AT = (7, 7, 25_001, 49_999)
"""Blocks in which the policies 0, 1, 2 and 3 are published."""


class LimitedNode:
    """A chain of LENGTH blocks whose node accepts ranges of at most `limit` blocks, including both ends."""

    def __init__(self, limit: int) -> None:
        self.limit, self.refused = limit, 0
        self.asked: list[tuple[int, int]] = []

    def block_number(self) -> int:
        return LENGTH - 1

    def get_logs(self, addresses: list[str], *, first: int, last: int, topics: object) -> list[Log]:
        if last - first + 1 > self.limit:
            self.refused += 1
            raise TransientError("chain_refused", "eth_getLogs: query exceeds max block range")
        self.asked.append((first, last))
        return [
            Log(
                address=ALICE,
                topics=(TOPIC, f"0x{1:064x}", f"0x{step:064x}"),
                data=bytes(32),
                block_number=number,
                block_hash=f"0x{number:064x}",
                transaction_hash=f"0x{step:064x}",
                log_index=step,
            )
            for step, number in enumerate(AT)
            if first <= number <= last
        ]


def make_history(node: LimitedNode, start_block: int = 3) -> History:
    return History(client=node, contracts=SimpleNamespace(deployment=replace(DEPLOYMENT, start_block=start_block)))


@pytest.mark.parametrize("limit", [400, 1000, 1024, 10_000, LENGTH])
def test_list_policies__any_limit__is_complete_and_in_order_and_reads_no_block_twice(limit: int):
    node = LimitedNode(limit)
    assert [event.step for event in make_history(node).list_policies(1)] == [0, 1, 2, 3]
    ranges = sorted(node.asked)
    assert (ranges[0][0], ranges[-1][1]) == (3, LENGTH - 1)
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(ranges))


def test_find__event_is_in_the_newest_range__reads_no_older_range():
    node = LimitedNode(1000)
    event = make_history(node)._find(PolicyPublished, ALICE)
    assert event is not None
    assert event.step == 3
    assert len(node.asked) == 1


def test_list_policies__second_query__starts_with_the_size_that_was_accepted():
    node = LimitedNode(400)
    history = make_history(node)
    history.list_policies(1)
    refused = node.refused
    history.list_policies(1)
    assert node.refused - refused < refused


def test_list_policies__long_chain__begins_with_at_most_100_000_blocks():
    node = LimitedNode(10**9)
    node.block_number = lambda: 250_000
    make_history(node).list_policies(1)
    assert node.asked == [(150_001, 250_000), (50_001, 150_000), (3, 50_000)]


def test_list_policies__node_refuses_every_range__is_transient():
    with pytest.raises(TransientError, match="chain_refused"):
        make_history(LimitedNode(0)).list_policies(1)


def test_list_policies__node_goes_down__is_transient():
    node = LimitedNode(1000)
    node.block_number = iter_block_numbers(LENGTH - 1).__next__
    with pytest.raises(TransientError, match="chain_unreachable"):
        make_history(node).list_policies(1)


def iter_block_numbers(number: int) -> Iterator[int]:
    """Answer once, and then be down."""
    yield number
    raise TransientError("chain_unreachable", "gone")


def test_walk__is_over__asks_for_no_further_blocks():
    node = LimitedNode(1000)
    history = make_history(node)
    assert history.find_listings([1, 2], is_over=lambda: len(node.asked) == 3) == {}
    assert len(node.asked) == 3
    assert history.count_nodes([1], first=3, is_over=lambda: True) is None
    assert history.list_newest_epochs({1: 0}, first=3, is_over=lambda: False) == {}
    assert len(node.asked) == 3
    assert history.count_nodes([1], first=LENGTH - 500, is_over=lambda: False) == {1: 0}
    assert len(node.asked) == 4
