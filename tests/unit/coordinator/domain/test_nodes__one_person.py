"""A contributor is one person: what one of its nodes did counts for all its nodes, present and future."""

import pytest

from coordinator.db.models import CaseRow
from coordinator.domain import nodes, tasks
from covey.protocol.status import CaseState, SubmissionState, TaskState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import FakePool, make_address, make_hash, make_params

pytestmark = pytest.mark.unit


@pytest.fixture
def owner(pool: FakePool) -> FakePool:
    """Nodes a and b of one contributor, and one of another. Nothing is drawn, and nobody is a newcomer."""
    rules = {"audit_rate": 0.0, "newcomer_submissions": 0}
    pool.params = make_params(verification=rules, groups_per_step=40, strikes_to_suspend=3)
    pool.register("a", "b", owner="owner")
    pool.register("other")
    pool.publish(0)
    return pool


def reject(pool: FakePool, name: str) -> str:
    """Let a quorum reject work of a node for its proofs, and return the receipt's hash."""
    receipt = pool.work(name)
    with pool.database.write() as rows:
        row = rows.get_submission(receipt)
        row.state, row.decision, row.reason = SubmissionState.REJECTED, Decision.REJECT, Reason.PROOF
        nodes.condemn(rows, node=rows.get_node(row.node), contributor=row.contributor, why=nodes.REJECTED)
    return receipt


def close_case(pool: FakePool, receipt: str, state: CaseState) -> None:
    with pool.database.write() as rows:
        row = rows.get_submission(receipt)
        rows.add(
            CaseRow(
                receipt_hash=receipt, node=row.node, contributor=row.contributor, state=state, block_number=1,
                transaction_hash=make_hash(receipt),
            )
        )  # fmt: skip
        rows.flush()
        nodes.reinstate(rows, pool.params, make_address("owner"))


def list_suspended(pool: FakePool, *names: str) -> list[str]:
    return [pool.node(name).suspended for name in names]


def test_condemn__hard_rejection__bars_all_nodes_of_the_contributor_and_those_that_it_registers_later(owner: FakePool):
    reject(owner, "a")
    owner.remove("a")
    owner.register("new key", owner="owner")
    assert list_suspended(owner, "a", "b", "new key", "other") == ["rejected"] * 3 + [""]


def test_reinstate__veto_of_one_of_two_rejections__lifts_nothing(owner: FakePool):
    first, second = owner.work("a"), owner.work("b")
    with owner.database.write() as rows:
        for receipt in (first, second):
            row = rows.get_submission(receipt)
            row.state, row.decision, row.reason = SubmissionState.REJECTED, Decision.REJECT, Reason.PROOF
            nodes.condemn(rows, node=rows.get_node(row.node), contributor=row.contributor, why=nodes.REJECTED)
    close_case(owner, first, CaseState.VETOED)
    owner.register("c", owner="owner")
    assert list_suspended(owner, "a", "b", "c") == ["rejected"] * 3
    close_case(owner, second, CaseState.VETOED)
    owner.register("d", owner="owner")
    assert list_suspended(owner, "a", "b", "c", "d") == [""] * 4


@pytest.mark.parametrize("state", [CaseState.LAPSED, CaseState.SLASHED])
def test_reinstate__case_that_was_not_vetoed__lifts_nothing(owner: FakePool, state: CaseState):
    close_case(owner, reject(owner, "a"), state)
    assert list_suspended(owner, "a", "b") == ["rejected"] * 2


def test_pardon__struck_out_contributor__its_later_nodes_are_served(owner: FakePool):
    owner.strike("a", owner.params.strikes_to_suspend)
    owner.register("c", owner="owner")
    assert list_suspended(owner, "a", "b", "c") == ["strikes"] * 3
    with owner.database.write() as rows:
        nodes.pardon(rows, make_address("owner"))
    owner.register("d", owner="owner")
    assert list_suspended(owner, "a", "b", "c", "d") == [""] * 4


def test_remove__keys_that_are_rotated_with_their_leases__count_as_drops_of_the_contributor(owner: FakePool):
    """Each new key would see other prompts and seeds, of which it could keep the best."""
    for number in range(9):
        owner.register(f"key {number}", owner="rotator")
        if owner.node(f"key {number}").suspended:
            break
        owner.lease(f"key {number}")
        owner.remove(f"key {number}")
    assert (number, owner.node(f"key {number}").suspended) == (6, "strikes")


def test_cool_down__fleet_of_new_nodes_that_each_lose_a_first_lease__has_no_strikes(owner: FakePool):
    """A provider takes spot machines away. The limit of four drops held for one node, and was that of a whole fleet."""
    names = [f"node {number}" for number in range(14)]
    owner.register(*names, owner="fleet")
    for name in names:
        task = owner.lease(name)
        with owner.database.write() as rows:
            tasks.return_task(rows, owner.params, node=task.node, task=task.id, lease=task.lease, now=owner.now)
    assert owner.strikes(names[0]) == 0


def test_cool_down__contributor_with_more_work_than_drops__has_no_strikes(owner: FakePool):
    with owner.database.write() as rows:
        rows.require_contributor(make_address("owner")).accepted = 10
    for _ in range(5):
        task = owner.lease("a")
        with owner.database.write() as rows:
            tasks.return_task(rows, owner.params, node=task.node, task=task.id, lease=task.lease, now=owner.now)
        owner.now += 60
    assert owner.strikes("a") == 0


def test_assign__node_that_registered_after_the_policy__waits_while_an_earlier_one_asks(owner: FakePool):
    """Whoever knows the policy's hash could try keys until one draws the prompts and seeds that it likes."""
    owner.register("late", owner="late", block=50)
    owner.wait("late")
    owner.wait("other")
    owner.assign()
    assert [task.node for task in owner.tasks(TaskState.ASSIGNED)] == [make_address("other")]
    owner.publish(1, block=60)
    owner.wait("late")
    owner.wait("b")
    owner.assign()
    assert make_address("late") in [task.node for task in owner.tasks(TaskState.ASSIGNED)]


def test_assign__first_policy_is_older_than_all_nodes__is_served(pool: FakePool):
    pool.publish(0)
    pool.register("a", block=50)
    pool.wait("a")
    pool.assign()
    assert [task.node for task in pool.tasks(TaskState.ASSIGNED)] == [make_address("a")]


def test_register_node__again_after_its_removal__counts_as_late_and_a_restart_does_not(owner: FakePool):
    owner.register("a", owner="owner", block=50)
    assert owner.node("a").registered_block == 0
    owner.remove("a")
    owner.register("a", owner="owner", block=50)
    assert owner.node("a").registered_block == 50
