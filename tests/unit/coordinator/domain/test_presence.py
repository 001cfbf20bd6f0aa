from typing import Any

import pytest
from sqlalchemy import event

from coordinator.db.models import TaskRow
from coordinator.domain import nodes, stakes
from coordinator.domain.presence import NodeBeat, record_beats, withdraw_claim
from coordinator.domain.stakes import Stake
from covey.errors import CoveyError
from tests.fakes.pool import INSTANCE, STAKE_RULE, FakePool, make_address

pytestmark = pytest.mark.unit
OTHER = "f" * 32
UNTIL = 1e12
"""Unix time until which claims wait."""


def make_sign(name: str, **changes: Any) -> NodeBeat:
    values = {"node": make_address(name), "instance": INSTANCE, "free_slots": 1, "cached_version": 3}
    return NodeBeat(**(values | changes))


def claim(name: str, **changes: Any) -> NodeBeat:
    return make_sign(name, **({"is_claim": True, "waiting_until": UNTIL} | changes))


def stake(pool: FakePool, name: str, staked: int, locked: int = 0) -> None:
    with pool.database.write() as rows:
        stakes.record_stake(rows, make_address(f"{name}'s owner"), Stake(staked, locked), block=1)


def record(pool: FakePool, *signs: NodeBeat) -> list[Any]:
    """Return the code of the error of each sign, or None."""
    with pool.database.write() as rows:
        found = record_beats(rows, pool.params, signs, rule=STAKE_RULE, now=pool.now)
    return [each.code if isinstance(each, CoveyError) else each for each in found]


def test_record_signs__heartbeats__are_noted_and_make_nobody_a_candidate(pool: FakePool):
    pool.register("a")
    assert record(pool, make_sign("a"), make_sign("stranger")) == [None, "unknown_node"]
    node = pool.node("a")
    assert (node.seen_at, node.instance, node.cached_version, node.waiting_until) == (pool.now, INSTANCE, 3, 0.0)


def test_record_signs__claims__are_refused_one_by_one(pool: FakePool):
    pool.register("a", "poor", "new", "bad", "gone")
    for name in ("a", "bad", "gone"):
        stake(pool, name, 100)
    stake(pool, "poor", 150, locked=60)
    pool.remove("gone")
    with pool.database.write() as rows:
        nodes.suspend(rows, rows.get_node(make_address("bad")), nodes.CASE)
    signs = [claim(name) for name in ("a", "poor", "new", "bad", "gone")]
    assert record(pool, *signs) == [None, "stake_too_low", "stake_unknown", "suspended", "suspended"]
    assert pool.node("a").waiting_until == UNTIL
    assert pool.node("poor").waiting_until == 0.0


def test_record_signs__claim_that_came_late_to_its_row__waits_now(pool: FakePool):
    pool.register("a")
    stake(pool, "a", 100)
    assert record(pool, claim("a", waiting_until=pool.now - 1)) == [None]
    assert pool.node("a").waiting_until == pool.now


def test_withdraw_claim__client_has_left__ends_its_own_claim_and_no_newer_one(pool: FakePool):
    pool.register("a")
    stake(pool, "a", 100)
    first, second = claim("a", waiting_until=UNTIL + 1), claim("a", waiting_until=UNTIL + 2)
    assert record(pool, first) == [None]
    assert record(pool, second) == [None]
    for sign, until in ((first, UNTIL + 2), (second, 0.0), (claim("stranger"), 0.0)):
        with pool.database.write() as rows:
            withdraw_claim(rows, sign)
        assert pool.node("a").waiting_until == until


def test_record_signs__stake_of_one_contributor__must_back_all_its_nodes(pool: FakePool):
    pool.register("a", "b", owner="both")
    with pool.database.write() as rows:
        stakes.record_stake(rows, make_address("both"), Stake(199, 0), block=1)
    assert record(pool, claim("a"), claim("b")) == ["stake_too_low"] * 2
    pool.remove("b")
    assert record(pool, claim("a")) == [None]


def test_record_signs__another_instance__is_refused_until_the_first_is_silent(pool: FakePool):
    pool.register("a")
    assert record(pool, make_sign("a")) == [None]
    assert record(pool, make_sign("a", instance=OTHER)) == ["another_instance"]
    pool.now += nodes.INSTANCE_SECONDS
    assert record(pool, make_sign("a", instance=OTHER), make_sign("a")) == [None, "another_instance"]


def test_record_signs__two_instances_at_once__only_the_first_is_served(pool: FakePool):
    pool.register("a")
    assert record(pool, make_sign("a"), make_sign("a", instance=OTHER)) == [None, "another_instance"]
    assert pool.node("a").instance == INSTANCE


def test_record_signs__ten_times_as_many_nodes__need_no_more_queries(pool: FakePool):
    names = [f"n{number}" for number in range(50)]
    pool.register(*names)
    for name in names:
        stake(pool, name, 100)

    def count(signs: list[NodeBeat]) -> int:
        statements: list[str] = []
        engine = pool.database._engine
        listener = lambda *arguments: statements.append(arguments[2])  # noqa: E731
        event.listen(engine, "before_cursor_execute", listener)
        try:
            assert record(pool, *signs) == [None] * len(signs)
        finally:
            event.remove(engine, "before_cursor_execute", listener)
        return len(statements)

    record(pool, claim(names[0]))
    pool.now += 1
    few = count([claim(name) for name in names[:5]])
    pool.now += 1
    assert count([claim(name) for name in names]) == few


def test_record_signs__newer_policy_on_disk__has_the_seconds_since_its_announcement(pool: FakePool):
    """The first policy, an old one, and one after a silence do not count."""
    pool.register("a", "b")
    pool.publish(0)
    pool.now += 7
    record(pool, make_sign("a", cached_version=0))
    assert pool.node("a").policy_seconds is None
    pool.publish(1)
    pool.now += 12.5
    assert record(pool, make_sign("a", cached_version=1), make_sign("b", cached_version=0)) == [None, None]
    assert (pool.node("a").policy_seconds, pool.node("b").policy_seconds) == (12.5, None)
    pool.now += 5
    record(pool, make_sign("a", cached_version=1))
    record(pool, make_sign("a", cached_version=0))
    assert pool.node("a").policy_seconds == 12.5
    pool.now += nodes.INSTANCE_SECONDS
    record(pool, make_sign("b", cached_version=1))
    assert pool.node("b").policy_seconds is None
    with pool.database.read() as rows:
        assert rows.list_policy_seconds(since=0.0) == [12.5]


# -- dead nodes


def hear_others(pool: FakePool, seconds: int) -> None:
    """Another node is heard every ten seconds."""
    for _ in range(seconds // 10):
        pool.now += 10
        pool.wait("b", seconds=0)


def lease_for_long(pool: FakePool) -> TaskRow:
    pool.params = pool.params.model_copy(update={"lease_seconds": 3600})
    pool.register("a", "b")
    pool.publish(0)
    return pool.lease("a")


def test_expire_leases__node_is_dead__its_lease_ends_before_its_time(pool: FakePool):
    lease_for_long(pool)
    hear_others(pool, 120)
    assert pool.expire() == 0
    hear_others(pool, 10)
    assert pool.expire() == 1
    assert pool.node("a").dropped == 1


def test_expire_leases__nobody_was_heard_meanwhile__nobody_is_dead(pool: FakePool):
    """The coordinator was down or cut off. What was leased may still be handed in when it is back."""
    lease_for_long(pool)
    pool.now += 600
    assert pool.expire() == 0
    hear_others(pool, 30)
    assert pool.expire() == 0, "node a has had no time to be heard"
    pool.wait("a", seconds=0)
    hear_others(pool, 110)
    assert pool.expire() == 0
    hear_others(pool, 20)
    assert pool.expire() == 1
