"""Which policy a lease is of: that of its node, where the task was planned for it or for an older one."""

import pytest

from coordinator.domain import steps
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Reason
from tests.fakes.pool import FakePool, code_of, make_address, make_hash, make_params

pytestmark = pytest.mark.unit


@pytest.fixture
def ahead(pool: FakePool) -> FakePool:
    """Half of what was planned for policy 0 is done when policy 1 comes."""
    pool.params = make_params(max_staleness=1)
    pool.register("a", "b")
    pool.publish(0)
    for _ in range(2):
        pool.accept(pool.work("a"))
    return pool


def test_assign_tasks__node_without_the_newest_policy__is_given_older_work_until_it_has_it(ahead: FakePool):
    ahead.publish(1)
    versions = [task.policy_version for task in ahead.tasks(TaskState.PENDING)]
    assert set(versions) == {0, 1}
    for _ in range(versions.count(0)):
        ahead.wait("a", slots=9, version=0)
        ahead.assign()
        ahead.collect("a", [task.lease for task in ahead.tasks() if task.collected_at])
    given = [task.policy_version for task in ahead.tasks(TaskState.ASSIGNED)]
    assert given == [0] * versions.count(0)
    ahead.wait("b", slots=9, version=0)
    assert ahead.assign() == 0
    ahead.wait("b", slots=9, version=1, seconds=0.0)  # a heartbeat, while the claim of version 0 still waits
    assert ahead.assign() == 1


def test_assign_tasks__node_that_has_only_the_newest_policy__is_given_older_work_of_that_one(ahead: FakePool):
    """It need not download what it came too late for, and the work is younger when it is trained on."""
    left = {task.id for task in ahead.tasks(TaskState.PENDING)}
    ahead.publish(1)
    for name, version in (("a", 7), ("b", 0)):  # who says more than there is has the newest
        ahead.wait(name, slots=9, version=version)
        ahead.assign()
    given = {task.node: task.policy_version for task in ahead.tasks(TaskState.ASSIGNED)}
    assert given == {make_address("a"): 1, make_address("b"): 0}
    assert {task.id for task in ahead.tasks(TaskState.ASSIGNED) if task.policy_version == 0} <= left


def test_open_step__reorganised_to_another_policy__voids_what_was_begun_with_the_first_and_blames_nobody(
    pool: FakePool,
):
    """Prompts and seeds hang on the policy's hash: judged by the second one, honest work would look like fraud."""
    pool.params = make_params(max_staleness=2)
    pool.register("a", "b", "c")
    pool.publish(0)
    accepted = pool.work("a")
    pool.accept(accepted)
    waiting = pool.work("b")
    pool.dispatch()
    begun = pool.lease("c")
    with pool.database.write() as rows:
        steps.open_step(rows, pool.params, number=0, record_hash=make_hash("another"), block=99, now=7.0)
    assert pool.states() == {accepted: SubmissionState.ACCEPTED, waiting: SubmissionState.VOID}
    row = pool.submission(waiting)
    assert row.decided_at == 7.0
    assert (row.reason, row.units, pool.strikes("b"), pool.node("b").suspended) == (Reason.UNDECIDED, 0, 0, "")
    assert pool.claim(0) is None, "nobody is asked to judge it"
    assert code_of(pool.submit, begun) == "lease_expired"
    assert pool.node("c").dropped == 0
    assert {task.policy_version for task in pool.tasks(TaskState.PENDING)} == {0}
