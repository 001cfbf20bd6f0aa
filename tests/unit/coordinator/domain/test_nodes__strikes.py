"""Strikes end with accepted work or with a pardon, so that bad luck bars nobody and cheating still does."""

import random

import pytest

from coordinator.db.models import ContributorRow, NodeRow
from coordinator.domain import nodes
from covey.errors import ProtocolError
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import FakePool, make_address, make_params

pytestmark = pytest.mark.unit


@pytest.fixture
def working(pool: FakePool) -> FakePool:
    """Nodes a and b of one contributor. Two strikes suspend, and three accepted submissions take one back."""
    rules = {"audit_rate": 0.0, "newcomer_submissions": 0}
    pool.params = make_params(
        verification=rules, strikes_to_suspend=2, accepted_per_strike=3, groups_per_step=80, max_staleness=9
    )
    pool.register("a", "b", owner="owner")
    pool.publish(0)
    return pool


def read(pool: FakePool) -> ContributorRow:
    with pool.database.read() as rows:
        row = rows.get_contributor(make_address("owner"))
        assert row is not None
        return row


def test_take_back_strike__accepted_work_of_all_nodes__takes_back_one_strike_each_time(working: FakePool):
    working.strike("a", 1)
    seen = []
    for name in ("a", "b", "b", "a"):
        working.decide(working.work(name))
        seen.append((working.strikes("a"), read(working).accepted_since))
    assert seen == [(1, 1), (1, 2), (0, 0), (0, 0)]


def test_take_back_strike__accepted_before_the_strike__is_not_counted(working: FakePool):
    for _ in range(5):
        working.decide(working.work("a"))
    working.strike("a", 1)
    working.decide(working.work("a"))
    assert working.strikes("a") == 1


def test_take_back_strike__suspended__keeps_all_strikes(working: FakePool):
    waiting = [working.work(name) for name in ("a", "b", "a")]
    working.strike("a", 2)
    for receipt in waiting:
        working.decide(receipt)
    assert (working.strikes("a"), working.node("a").suspended) == (2, "strikes")


def test_take_back_strike__unknown_and_void__neither_add_nor_take_back(working: FakePool):
    working.strike("a", 1)
    for _ in range(4):
        working.decide(working.work("a"), Decision.UNKNOWN, reason=Reason.NONE)
    assert (working.strikes("a"), read(working).accepted_since) == (1, 0)


class Contributors:
    """Rows in memory of contributors with some nodes each, for tests of thousands of submissions."""

    def __init__(self, *, contributors: int, nodes_of_each: int = 1) -> None:
        self.rows = {
            f"owner-{i}": ContributorRow(address=f"owner-{i}", strikes=0, accepted_since=0, suspended="", pardons=0)
            for i in range(contributors)
        }
        self.get_contributor, self.require_contributor = self.rows.get, self.rows.__getitem__
        self.nodes = {name: [NodeRow(suspended="") for _ in range(nodes_of_each)] for name in self.rows}
        self.list_nodes_of = self.nodes.__getitem__

    def decide(self, contributor: str, *, is_wrong: bool) -> bool:
        """Decide one submission as judging does. Returns whether the contributor's nodes are suspended."""
        decided = nodes.add_strike if is_wrong else nodes.take_back_strike
        decided(self, make_params(), contributor)  # type: ignore[arg-type]
        return any(node.suspended for node in self.nodes[contributor])


@pytest.mark.parametrize("seed", range(5))
def test_strikes__ten_honest_nodes_with_one_wrong_reward_in_twenty__are_not_barred(seed: int):
    """With strikes for life, all ten were barred after about 160 submissions."""
    rng = random.Random(seed)
    apart, together = Contributors(contributors=10), Contributors(contributors=1, nodes_of_each=10)
    for number in range(10_000):
        is_wrong = rng.random() < 0.05
        assert not apart.decide(f"owner-{number % 10}", is_wrong=is_wrong)
        if number < 1000:
            assert not together.decide("owner-0", is_wrong=is_wrong)


@pytest.mark.parametrize(("every", "before", "most"), [(1, 8, 8), (2, 16, 24), (4, 32, 64)])
def test_strikes__cheat_with_wrong_rewards__is_barred_almost_as_soon_as_with_strikes_for_life(
    every: int, before: int, most: int
):
    """One submission in `every` is wrong. `before` is the number of submissions at which strikes for life barred it."""
    rows = Contributors(contributors=1, nodes_of_each=3)
    barred = next(i for i in range(1, 1000) if rows.decide("owner-0", is_wrong=i % every == 0))
    assert before <= barred <= most
    assert all(node.suspended == "strikes" for node in rows.nodes["owner-0"])


@pytest.mark.parametrize("named", ["owner", "a", "b"])
def test_pardon__contributor_or_node__serves_again_what_strikes_suspended(working: FakePool, named: str):
    working.register("c", owner="another")
    working.strike("a", 3)
    working.strike("c", 2)
    with working.database.write() as rows:
        nodes.suspend(rows, nodes.require_node(rows, make_address("b")), nodes.REJECTED)
        given = nodes.pardon(rows, make_address(named))
    assert given == nodes.Pardon(make_address("owner"), 3, [make_address("a")])
    assert [working.node(name).suspended for name in ("a", "b", "c")] == ["", "rejected", "strikes"]
    assert (working.strikes("a"), working.strikes("c"), read(working).pardons) == (0, 2, 1)
    working.strike("a", 1)
    assert working.node("a").suspended == "", "it starts again"


def test_pardon__stranger__is_refused(working: FakePool):
    with working.database.write() as rows, pytest.raises(ProtocolError, match="no_contributor"):
        nodes.pardon(rows, make_address("nobody"))
