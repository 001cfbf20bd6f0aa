"""Steps open, tasks are planned at the pool's pace, leased, collected, dropped and planned anew."""

import pytest

from coordinator.db.models import TaskRow
from coordinator.domain import nodes, steps, tasks
from covey.errors import ProtocolError
from covey.protocol.ids import LeaseId, TaskId
from covey.protocol.status import StepState, TaskState
from covey.protocol.verdict import Reason
from tests.fakes.pool import FakePool, make_address, make_hash, make_params

pytestmark = pytest.mark.unit


# -- open_step and plan_tasks: one batch is two tasks


@pytest.mark.parametrize(("staleness", "tasks"), [(0, 2), (1, 4), (2, 6)])
def test_open_step__first_policy__plans_its_batch_and_the_admitted_lag(pool: FakePool, staleness: int, tasks: int):
    pool.params = make_params(max_staleness=staleness)
    assert pool.publish(0).state is StepState.OPEN
    planned = pool.tasks(TaskState.PENDING)
    assert [(task.policy_version, task.groups) for task in planned] == [(0, 2)] * tasks


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_open_step__each_later_policy__adds_one_batch_of_its_own_version(pool: FakePool, staleness: int):
    pool.params = make_params(max_staleness=staleness)
    pool.register("a")
    pool.publish(0)
    for _ in range(2):
        pool.accept(pool.work("a"))
    before = len(pool.tasks())
    pool.publish(1)
    assert [task.policy_version for task in pool.tasks()[before:]] == [1, 1]


@pytest.mark.parametrize(("max_steps", "tasks"), [(1, 2), (2, 4), (9, 6)])
def test_plan_tasks__short_run__plans_nothing_that_it_could_not_train_on(pool: FakePool, max_steps: int, tasks: int):
    pool.params = make_params(max_staleness=2, max_steps=max_steps)
    pool.publish(0)
    assert len(pool.tasks()) == tasks


def test_plan_tasks__again__adds_nothing(pool: FakePool):
    pool.publish(0)
    with pool.database.write() as rows:
        assert steps.plan_tasks(rows, pool.params) == 0
    assert len(pool.tasks()) == 2


def test_plan_tasks__no_policy_yet__plans_nothing(pool: FakePool):
    with pool.database.write() as rows:
        assert steps.plan_tasks(rows, pool.params) == 0


def test_plan_tasks__pool_ended__plans_nothing_and_unbegun_tasks_end(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    pool.lease("a")
    with pool.database.write() as rows:
        rows.set_fact("ended", 99)
        tasks.end_tasks(rows)
        assert steps.plan_tasks(rows, pool.params) == 0
    assert [task.state for task in pool.tasks()] == [TaskState.ASSIGNED, TaskState.EXPIRED]


def test_plan_tasks__rejected_and_void_work__is_planned_anew(pool: FakePool):
    pool.register("a", "b")
    pool.publish(0)
    pool.reject(pool.work("a"), Reason.PROOF)
    pool.reject(pool.work("b"), Reason.REWARD)
    assert [task.state for task in pool.tasks()] == [TaskState.SUBMITTED] * 2 + [TaskState.PENDING] * 2


def test_open_step__told_again__changes_nothing_but_the_manifest(pool: FakePool):
    pool.publish(0)
    with pool.database.write() as rows:
        again = steps.open_step(rows, pool.params, number=0, record_hash=make_hash("other"), block=77, now=5.0)
    assert (again.record_hash, again.block_number, again.state) == (make_hash("other"), 77, StepState.OPEN)
    assert len(pool.tasks()) == 2


def test_open_step__chain_ahead_of_the_batch__trains_the_step_before(pool: FakePool):
    pool.publish(0)
    pool.publish(1)
    with pool.database.read() as rows:
        assert [(s.number, s.state) for s in rows.list_steps()] == [(0, StepState.TRAINED), (1, StepState.OPEN)]


# -- assign and collect


def test_assign_tasks__nobody_waits__leases_nothing(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    assert pool.assign() == 0
    pool.wait("a", seconds=5)
    pool.now += 5.1  # the long poll has ended
    assert pool.assign() == 0


def test_assign_tasks__newcomer_that_asks_for_many__holds_one(pool: FakePool):
    pool.params = make_params(max_staleness=2)
    pool.register("a")
    pool.publish(0)
    pool.wait("a", slots=4096)
    assert pool.assign() == 1


def test_assign_tasks__proven_node_with_two_slots__holds_two_and_no_more(pool: FakePool):
    pool.params = make_params(max_staleness=2)
    pool.register("a")
    pool.publish(0)
    with pool.database.write() as rows:
        nodes.require_node(rows, make_address("a")).accepted = 9
    for _ in range(2):
        pool.wait("a", slots=2)
        assert pool.assign() == 1
        assert pool.assign() == 0, "it has not collected the lease"
        assert pool.collect("a", [task.lease for task in pool.tasks() if task.collected_at]) is not None
    pool.wait("a", slots=2)
    assert pool.assign() == 0
    assert [task.node for task in pool.tasks(TaskState.ASSIGNED)] == [make_address("a")] * 2


def test_assign_tasks__leases__have_growing_numbers(pool: FakePool):
    pool.register("a", "b")
    pool.publish(0)
    assert (pool.lease("a").lease, pool.lease("b").lease) == (1, 2)
    pool.now += 31
    pool.expire()
    pool.now += 5
    assert pool.lease("b").lease == 3


def test_assign_tasks__suspended_or_cooling__gets_nothing(pool: FakePool):
    pool.register("a", "b")
    pool.publish(0)
    with pool.database.write() as rows:
        nodes.suspend(rows, nodes.require_node(rows, make_address("a")), "test")
        nodes.require_node(rows, make_address("b")).cooldown_until = pool.now + 1
    pool.wait("a")
    pool.wait("b")
    assert pool.assign() == 0
    pool.now += 1
    assert pool.assign() == 1
    assert pool.collect("a") is None
    assert pool.collect("b") is not None


def test_collect_task__later__starts_the_clock_only_then(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    pool.wait("a")
    pool.assign()
    (assigned,) = pool.tasks(TaskState.ASSIGNED)
    assert (assigned.collected_at, assigned.offered_until) == (None, 1005.0)
    pool.now += 4
    task = pool.collect("a")
    assert (task.collected_at, task.ends_at) == (1004.0, 1034.0)
    assert pool.collect("a", [task.lease]) is None, "a lease is collected once"


def test_collect_task__lost_by_a_crash__comes_again_on_its_old_clock(pool: FakePool):
    pool.register("a", "b")
    pool.publish(0)
    first = pool.lease("a")
    pool.now += 10
    again = pool.collect("a")
    assert (again.id, again.lease, again.ends_at) == (first.id, first.lease, 1030.0)
    assert pool.collect("b") is None, "another node is never given it"
    pool.submit(first)
    assert pool.collect("a") is None


def test_collect_task__of_another_node__is_none(pool: FakePool):
    pool.register("a", "b")
    pool.publish(0)
    pool.wait("a")
    pool.assign()
    assert pool.collect("b") is None


def test_assign_tasks__after_collecting__waits_until_the_node_asks_again(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    pool.submit(pool.lease("a"))
    assert pool.assign() == 0, "its long poll ended when it got the lease"
    pool.wait("a")
    assert pool.assign() == 1


def test_assign_tasks__outdated_task__is_not_leased(pool: FakePool):
    """Its work would be refused as stale."""
    pool.register("a")
    pool.publish(0)
    pool.publish(1)
    assert pool.lease("a").policy_version == 1


# -- expire, cool down, blame


def test_expire_leases__collected_and_dropped__is_planned_anew_and_costs_a_pause(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    dropped = pool.lease("a")
    pool.now += 29.9
    assert pool.expire() == 0
    pool.now += 0.1
    assert pool.expire() == 1
    tasks = {task.id: task.state for task in pool.tasks()}
    assert tasks[dropped.id] is TaskState.EXPIRED
    assert sorted(tasks.values()) == [TaskState.EXPIRED, TaskState.PENDING, TaskState.PENDING]
    assert (pool.node("a").dropped, pool.node("a").cooldown_until) == (1, pool.now + 5)


def test_return_task__by_its_node__is_planned_anew_at_once_and_costs_what_dropping_costs(pool: FakePool):
    pool.register("a", "b")
    pool.publish(0)
    task = pool.lease("a")
    give_back(pool, "a", task)
    tasks = {each.id: each.state for each in pool.tasks()}
    assert tasks[task.id] is TaskState.EXPIRED
    assert sorted(tasks.values()) == [TaskState.EXPIRED, TaskState.PENDING, TaskState.PENDING]
    assert (pool.node("a").dropped, pool.node("a").cooldown_until) == (1, pool.now + 5)


def test_return_task__several_at_once__pauses_add_up(pool: FakePool):
    pool.params = make_params(max_staleness=2)
    pool.register("a")
    pool.publish(0)
    with pool.database.write() as rows:
        nodes.require_node(rows, make_address("a")).accepted = 9
    first = pool.lease("a")
    pool.wait("a", slots=2)
    pool.assign()
    second = pool.collect("a", holding=[first.lease])
    for task in (first, second):
        give_back(pool, "a", task)
    assert pool.node("a").cooldown_until == pool.now + 10


@pytest.mark.parametrize(("name", "late", "code"), [("b", 0, "not_your_task"), ("a", 30, "lease_expired")])
def test_return_task__not_in_hand__is_refused_and_changes_nothing(pool: FakePool, name: str, late: int, code: str):
    pool.register("a", "b")
    pool.publish(0)
    task = pool.lease("a")
    pool.now += late
    with pytest.raises(ProtocolError) as caught:
        give_back(pool, name, task)
    assert caught.value.code == code
    assert pool.node(name).dropped == 0
    assert [each.state for each in pool.tasks() if each.id == task.id] == [TaskState.ASSIGNED]


def give_back(pool: FakePool, name: str, task: TaskRow) -> None:
    with pool.database.write() as rows:
        tasks.return_task(
            rows, pool.params, node=make_address(name), task=TaskId(task.id), lease=LeaseId(task.lease), now=pool.now
        )


def test_expire_leases__never_collected__is_no_drop_and_still_costs_a_pause(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    pool.wait("a")
    pool.assign()
    pool.now += tasks.COLLECT_SECONDS
    assert pool.expire() == 1
    assert (pool.node("a").dropped, pool.node("a").cooldown_until) == (0, pool.now + 5)
    assert len(pool.tasks(TaskState.PENDING)) == 2


def test_expire_leases__never_collected__does_not_shorten_a_pause(pool: FakePool):
    """Pauses of dropped leases add up, and one more lease that is not collected must not erase them."""
    pool.register("a")
    pool.publish(0)
    pool.wait("a")
    pool.assign()
    pool.now += tasks.COLLECT_SECONDS
    with pool.database.write() as rows:
        nodes.require_node(rows, make_address("a")).cooldown_until = pool.now + 40
    assert pool.expire() == 1
    assert pool.node("a").cooldown_until == pool.now + 40


def test_expire_leases__often_not_collected__pauses_are_longer_each_time_and_forgotten_after_an_hour(pool: FakePool):
    pool.register("a", "b")
    pool.publish(0)
    pauses = []
    for rest in (0.0, 0.0, tasks.MISSED_SECONDS, 0.0):
        pool.now += rest
        pool.wait("a")
        pool.wait("b")
        assert pool.assign() == 2
        pool.collect("b")
        pool.now += tasks.COLLECT_SECONDS
        assert pool.expire() >= 1
        pauses.append(pool.node("a").cooldown_until - pool.now)
        pool.now += 30
        pool.expire()
        with pool.database.write() as rows:
            nodes.require_node(rows, make_address("b")).cooldown_until = 0.0
    assert pauses == [5, 10, 5, 10]


def test_collect_task__named_before_it_is_collected__is_collected_all_the_same(pool: FakePool):
    """A node that guesses the numbers of its offers could let those expire that it does not like."""
    pool.register("a")
    pool.publish(0)
    pool.wait("a")
    pool.assign()
    task = pool.collect("a", holding=[1])
    assert (task.lease, task.collected_at) == (1, 1000.0)
    assert pool.collect("a", holding=[1]) is None


def test_assign_tasks__lost_offers_after_a_restart__are_collected_by_the_next_claim(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    pool.wait("a")
    pool.assign()
    pool.now += tasks.COLLECT_SECONDS - 1
    pool.wait("a")
    assert pool.assign() == 0
    assert pool.collect("a").lease == 1


# -- many nodes that cannot be served come first


def crowd_out(pool: FakePool, *, block: int = 0, dropped: int = 1, version: int = 1) -> None:
    """Let as many nodes wait as a transaction can serve, and one more that drops more than they do.

    The one more has the newest policy. The rows are written at once, because that many claims take seconds.
    """
    pool.params = make_params(max_staleness=1)
    crowd = [f"n{number}" for number in range(tasks.MAX_AT_ONCE)]
    pool.register(*crowd, owner="crowd", block=block)
    pool.register("honest", block=5)
    pool.publish(0)
    pool.publish(1)
    with pool.database.write() as rows:
        for node in rows.list_nodes():
            is_honest = node.address == make_address("honest")
            node.waiting_until, node.free_slots = pool.now + 5, 1
            node.cached_version = 1 if is_honest else version
            node.accepted, node.dropped = (99, dropped) if is_honest else (0, 0)


def keep_pending(pool: FakePool, version: int) -> None:
    """End the tasks of other policies."""
    with pool.database.write() as rows:
        for task in rows.list_tasks(TaskState.PENDING):
            if task.policy_version != version:
                task.state = TaskState.EXPIRED


def test_assign_tasks__crowd_has_an_older_policy_than_all_tasks__serves_who_has_theirs(pool: FakePool):
    crowd_out(pool, version=0)
    keep_pending(pool, 1)
    assert pool.assign() == 1
    assert [task.node for task in pool.tasks(TaskState.ASSIGNED)] == [make_address("honest")]


def test_assign_tasks__crowd_has_the_policy_of_some_tasks__others_are_served_too(pool: FakePool):
    crowd_out(pool, version=0)
    pending = [task.policy_version for task in pool.tasks(TaskState.PENDING)]
    assert set(pending) == {0, 1}
    assert pool.assign() == pending.count(0) + 1
    assert make_address("honest") in {t.node for t in pool.tasks(TaskState.ASSIGNED) if t.policy_version == 1}


def test_assign_tasks__crowd_registered_after_the_policy__serves_who_registered_earlier(pool: FakePool):
    crowd_out(pool, block=50)
    keep_pending(pool, 1)
    assert pool.assign() == 1
    assert [task.node for task in pool.tasks(TaskState.ASSIGNED)] == [make_address("honest")]


def test_assign_tasks__crowd_does_not_collect__serves_who_does(pool: FakePool):
    """A node of the crowd may hold more leases, but has one that it has not collected."""
    crowd_out(pool)
    keep_pending(pool, 1)
    with pool.database.write() as rows:
        for node in rows.list_nodes():
            node.free_slots, node.accepted = 9, 99
        rows.add_tasks(tasks.MAX_AT_ONCE, policy_version=1, groups=1)
    assert pool.assign() == tasks.MAX_AT_ONCE
    assert make_address("honest") not in {task.node for task in pool.tasks(TaskState.ASSIGNED)}
    assert pool.assign() == 1


def test_expire_leases__node_that_never_collects__cannot_keep_a_task_from_another(pool: FakePool):
    """Addresses decide between two that dropped nothing, and the hoarder's is the lower one."""
    pool.params = make_params(groups_per_step=2)  # one task
    hoarder, honest = sorted(("a", "b"), key=make_address)
    for name in (hoarder, honest):
        pool.register(name)
    pool.publish(0)
    for taker in (hoarder, honest):
        for name in (hoarder, honest):
            pool.wait(name)
        pool.assign()
        assert [task.node for task in pool.tasks(TaskState.ASSIGNED)] == [make_address(taker)]
        pool.now += tasks.COLLECT_SECONDS
        pool.expire()


def test_expire_leases__outdated_pending_task__ends_without_blame(pool: FakePool):
    pool.publish(0)
    pool.publish(1)
    assert pool.expire() == 2
    assert [task.policy_version for task in pool.tasks(TaskState.PENDING)] == [1] * 4, "the untrained batch too"


def test_expire_leases__often_dropped__is_a_strike_from_the_fourth_on(pool: FakePool):
    pool.params = make_params(strikes_to_suspend=2, cooldown_seconds=1)
    pool.register("a")
    pool.publish(0)
    strikes = []
    for _ in range(5):
        pool.lease("a")
        pool.now += 30
        pool.expire()
        pool.now += 1
        strikes.append(pool.strikes("a"))
    assert strikes == [0, 0, 0, 1, 2]
    assert pool.node("a").suspended == "strikes"


def test_expire_leases__rare_drops_of_a_proven_node__are_no_strike(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    with pool.database.write() as rows:
        node = nodes.require_node(rows, make_address("a"))
        node.accepted, node.dropped = 100, 20
    pool.lease("a")
    pool.now += 30
    pool.expire()
    assert (pool.node("a").dropped, pool.strikes("a")) == (21, 0)


def test_assign__heartbeat_without_a_long_poll__makes_no_candidate(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    pool.wait("a", version=0, seconds=0.0)
    assert pool.assign() == 0
    assert (pool.node("a").seen_at, pool.node("a").cached_version) == (1000.0, 0)
