"""A claim in one transaction: it is noted, a pending task is leased by the same rules as by the job, and collected."""

from typing import Any

import pytest
from sqlalchemy import event

from coordinator.db.models import TaskRow
from coordinator.domain import nodes, pausing, stakes, tasks
from coordinator.domain.presence import NodeBeat
from coordinator.domain.stakes import Stake
from covey.errors import CoveyError
from covey.protocol.status import TaskState
from tests.fakes.pool import INSTANCE, STAKE_RULE, FakePool, make_address, make_params

pytestmark = pytest.mark.unit


def sign(name: str, **changes: Any) -> NodeBeat:
    values = {"node": make_address(name), "instance": INSTANCE, "free_slots": 1, "cached_version": 0}
    return NodeBeat(**(values | {"is_claim": True, "waiting_until": 1e12} | changes))


def register(pool: FakePool, *names: str, **options: Any) -> None:
    """Register nodes whose contributors have the stake."""
    pool.register(*names, **options)
    with pool.database.write() as rows:
        for name in names:
            stakes.record_stake(rows, make_address(f"{name}'s owner"), Stake(100, 0), block=1)


def claim(pool: FakePool, *signs: NodeBeat) -> list[Any]:
    """Return the task of each claim, the code of its error, or None."""
    with pool.database.write() as rows:
        found = tasks.claim_tasks(rows, pool.params, signs, rule=STAKE_RULE, now=pool.now)
    return [each.code if isinstance(each, CoveyError) else each for each in found]


def test_claim_tasks__task_is_pending__is_leased_and_collected(pool: FakePool):
    register(pool, "a")
    pool.publish(0)
    (task,) = claim(pool, sign("a"))
    assert (task.node, task.lease, task.state) == (make_address("a"), 1, TaskState.ASSIGNED)
    assert (task.collected_at, task.ends_at) == (1000.0, 1030.0)
    assert pool.node("a").waiting_until == 0.0
    assert claim(pool, sign("a", holding=(1,))) == [None], "a newcomer holds one lease"
    assert [each.lease for each in claim(pool, sign("a"))] == [1], "a lost lease comes again"


def test_claim_tasks__no_task_is_pending__waits_for_the_job(pool: FakePool):
    register(pool, "a")
    assert claim(pool, sign("a", waiting_until=1005.0)) == [None]
    assert pool.node("a").waiting_until == 1005.0
    pool.publish(0)
    assert pool.assign() == 1
    assert [each.lease for each in claim(pool, sign("a"))] == [1], "a lease that waits is collected by the next claim"


def test_claim_tasks__node_that_drops_less_waits_for_the_last_task__is_not_overtaken(pool: FakePool):
    pool.params = make_params(groups_per_step=2)  # one task
    register(pool, "good", "bad")
    assert claim(pool, sign("good")) == [None]
    pool.publish(0)
    with pool.database.write() as rows:
        nodes.require_node(rows, make_address("bad")).dropped = 3
    assert claim(pool, sign("bad")) == [None]
    assert [task.node for task in pool.tasks(TaskState.ASSIGNED)] == [make_address("good")]


def test_claim_tasks__node_that_registered_after_the_policy__waits_while_an_earlier_one_asks(pool: FakePool):
    pool.params = make_params(groups_per_step=2)  # one task
    register(pool, "early", block=5)
    register(pool, "late", block=50)
    pool.publish(0, block=10)
    with pool.database.write() as rows:
        nodes.require_node(rows, make_address("early")).dropped = 3  # Otherwise it would come first anyway.
    found = claim(pool, sign("late"), sign("early"))
    assert [each and each.node for each in found] == [None, make_address("early")]


def test_claim_tasks__paused_cooling_or_suspended__leases_nothing(pool: FakePool):
    register(pool, "a", "cooling", "suspended")
    pool.publish(0)
    with pool.database.write() as rows:
        nodes.require_node(rows, make_address("cooling")).cooldown_until = pool.now + 1
        nodes.suspend(rows, nodes.require_node(rows, make_address("suspended")), "test")
    assert claim(pool, sign("cooling"), sign("suspended"), sign("stranger")) == [None, "suspended", "unknown_node"]
    with pool.database.write() as rows:
        pausing.set_paused(rows, by=pausing.PausedBy.OPERATOR, is_paused=True, now=pool.now)
    assert claim(pool, sign("a")) == [None]
    assert pool.tasks(TaskState.ASSIGNED) == []


def test_claim_tasks__another_claim_of_the_batch_is_refused__uses_what_this_one_says(pool: FakePool):
    """Rows that were read before the signs were written may still be in memory."""
    pool.params = make_params(max_staleness=2)
    register(pool, "a")
    pool.publish(0)
    pool.publish(1)
    with pool.database.write() as rows:
        row = nodes.require_node(rows, make_address("a"))
        row.free_slots, row.cached_version, row.accepted = 0, 0, 9
    found = claim(pool, sign("stranger"), sign("a", free_slots=2, cached_version=1))
    assert (found[0], found[1].policy_version) == ("unknown_node", 1)
    assert len(pool.tasks(TaskState.ASSIGNED)) == 1


def test_claim_tasks__proven_node_claims_again_and_again__gets_one_task_each_time(pool: FakePool):
    """It sees no offer that it could let expire, although it has room for many and names all numbers."""
    pool.params = make_params(groups_per_step=24)
    register(pool, "a")
    pool.publish(0)
    with pool.database.write() as rows:
        nodes.require_node(rows, make_address("a")).accepted = 20
    for lease in range(1, 12):
        (task,) = claim(pool, sign("a", free_slots=4096, holding=tuple(range(1, 4096))))
        assert task.lease == lease
        assert [each.lease for each in pool.tasks(TaskState.ASSIGNED)] == list(range(1, lease + 1))


def test_claim_tasks__does_not_wait__gets_a_pending_task_and_is_offered_none_later(pool: FakePool):
    pool.params = make_params(groups_per_step=2)  # one task
    register(pool, "a", "b")
    pool.publish(0)
    found = claim(pool, sign("a", waiting_until=0.0), sign("b", waiting_until=0.0))
    assert sum(task is not None for task in found) == 1
    with pool.database.write() as rows:
        rows.add_tasks(5, policy_version=0, groups=1)
    pool.now += 0.001
    assert pool.assign() == 0


def test_claim_tasks__heartbeats_in_the_batch__get_nothing(pool: FakePool):
    register(pool, "a", "b")
    pool.publish(0)
    found = claim(pool, sign("a", is_claim=False, waiting_until=0.0), sign("b"))
    assert (found[0], isinstance(found[1], TaskRow)) == (None, True)


@pytest.mark.parametrize("has_tasks", [True, False])
def test_claim_tasks__more_nodes__need_no_more_statements(pool: FakePool, has_tasks: bool):
    pool.params = make_params(groups_per_step=200, groups_per_task=1)
    names = [f"n{number}" for number in range(43)]
    register(pool, *names)
    if has_tasks:
        pool.publish(0)
    counts = []
    claim(pool, sign(names[0]))  # The first one notes that nodes are heard, too.
    for group in (names[1:4], names[3:]):
        statements: list[str] = []
        listener = lambda *arguments: statements.append(arguments[2])  # noqa: B023, E731
        event.listen(pool.database._engine, "before_cursor_execute", listener)
        try:
            found = claim(pool, *(sign(name) for name in group))
        finally:
            event.remove(pool.database._engine, "before_cursor_execute", listener)
        assert [each is not None for each in found] == [has_tasks] * len(group)
        counts.append(len(statements))
    assert counts[0] == counts[1] <= (24 if has_tasks else 10), "\n".join(statements)
