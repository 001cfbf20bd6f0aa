"""Receipts are recorded once, answered again word for word, refused with a stable code; batches keep their order."""

import dataclasses

import pytest

from coordinator.domain import steps, submissions, tasks
from covey.errors import ProtocolError
from covey.protocol import eip712, messages
from covey.protocol.ids import LeaseId, TaskId
from covey.protocol.status import StepState, SubmissionState, TaskState
from covey.protocol.verdict import Reason
from tests.fakes.pool import SIGNATURE, FakePool, make_address, make_hash, make_params

pytestmark = pytest.mark.unit


@pytest.fixture
def working(pool: FakePool) -> FakePool:
    pool.register("a", "b")
    pool.publish(0)
    return pool


def refused(pool: FakePool, receipt: messages.Receipt) -> str:
    before = pool.states()
    with pytest.raises(ProtocolError) as caught:
        pool.record(receipt)
    assert pool.states() == before, "a refusal changes nothing"
    return caught.value.code


# -- require_lease


def test_require_lease__each_wrong_claim__has_its_code(working: FakePool):
    task = working.lease("a")

    def code(node: str, number: int, lease: int, now: float) -> str:
        with pytest.raises(ProtocolError) as caught, working.database.read() as rows:
            tasks.require_lease(rows, node=make_address(node), task=TaskId(number), lease=LeaseId(lease), now=now)
        return caught.value.code

    assert code("a", 999, task.lease, 1000) == "unknown_task"
    assert code("b", task.id, task.lease, 1000) == "not_your_task"
    assert code("a", task.id, task.lease + 1, 1000) == "lease_expired"
    assert code("a", task.id, task.lease, task.ends_at) == "lease_expired"
    with working.database.read() as rows:
        held = tasks.require_lease(
            rows, node=make_address("a"), task=TaskId(task.id), lease=LeaseId(task.lease), now=task.ends_at - 0.01
        )
    assert held.id == task.id


# -- record_submission


def test_record_submission__lawful__keeps_receipt_and_promise(working: FakePool):
    task = working.lease("a")
    receipt = working.build_receipt(task)
    given = working.record(receipt, signed_at=50, due_by=64)
    row = working.submission(eip712.compute_struct_hash(receipt))
    assert given.message.receipt_hash == row.receipt_hash
    assert (row.signed_at, row.due_by, row.countersignature, row.signature) == (50, 64, SIGNATURE, SIGNATURE)
    assert (row.state, row.units, row.audited, row.step) == (SubmissionState.SUBMITTED, 20, None, None)
    assert submissions.to_receipt(row, 1) == receipt
    assert {t.id: t.state for t in working.tasks()}[task.id] is TaskState.SUBMITTED


def test_record_submission__the_same_again__is_answered_alike_whenever_it_comes(working: FakePool):
    receipt = working.build_receipt(working.lease("a"))
    first = working.record(receipt, signed_at=50)
    working.now += 10_000  # lease and receipt are over
    assert working.record(receipt, signed_at=90, due_by=99) == first
    assert len(working.states()) == 1


def test_record_submission__the_same_again_after_judgement__is_answered_alike(working: FakePool):
    receipt = working.build_receipt(working.lease("a"))
    first = working.record(receipt)
    working.accept(first.message.receipt_hash)
    assert working.record(receipt) == first


def test_record_submission__another_file_for_the_lease__is_equivocation(working: FakePool):
    receipt = working.build_receipt(working.lease("a"))
    working.record(receipt)
    assert refused(working, dataclasses.replace(receipt, work_key=make_hash("another"))) == "equivocation"


def test_record_submission__another_receipt_for_the_same_file__is_a_duplicate(working: FakePool):
    receipt = working.build_receipt(working.lease("a"))
    working.record(receipt)
    assert refused(working, dataclasses.replace(receipt, deadline=receipt.deadline + 1)) == "duplicate_submission"


def test_record_submission__a_file_handed_in_before__is_a_duplicate(working: FakePool):
    first = working.build_receipt(working.lease("a"))
    working.record(first)
    second = working.build_receipt(working.lease("b"), work_key=first.work_key)
    assert refused(working, second) == "duplicate_submission"


def test_record_submission__for_a_lease_of_another__is_refused_before_and_after(working: FakePool):
    task = working.lease("a")
    theirs = working.build_receipt(task, node=make_address("b"), contributor=make_address("b's owner"))
    assert refused(working, theirs) == "not_your_task"
    working.submit(task)
    assert refused(working, theirs) == "not_your_task"


def test_record_submission__late__is_refused_and_the_new_lease_stands(working: FakePool):
    late = working.lease("a")
    working.now += 30
    assert refused(working, working.build_receipt(late)) == "lease_expired"
    working.expire()
    assert refused(working, working.build_receipt(late)) == "lease_expired"


def test_record_submission__too_old_a_policy__is_stale(pool: FakePool):
    pool.params = make_params(max_staleness=1)
    pool.register("a")
    pool.publish(0)
    task = pool.lease("a")
    pool.publish(1)
    at_limit = pool.build_receipt(task)
    pool.publish(2)
    assert refused(pool, at_limit) == "stale"


def test_record_submission__policy_at_the_limit__is_recorded(pool: FakePool):
    pool.params = make_params(max_staleness=1)
    pool.register("a")
    pool.publish(0)
    task = pool.lease("a")
    pool.publish(1)
    receipt_hash = pool.submit(task)
    assert pool.states() == {receipt_hash: SubmissionState.SUBMITTED}


@pytest.mark.parametrize(
    "changes",
    [
        {"policy_version": 1},
        {"contributor": make_address("somebody")},
        {"groups": 1},
        {"units": 0},
        {"units": 2 * 2 * 8 + 1},  # groups x group size x maximal tokens, and one
        {"deadline": 1000},
    ],
)
def test_record_submission__field_that_is_not_the_tasks__is_a_bad_receipt(
    working: FakePool, changes: dict[str, object]
):
    task = working.lease("a")
    assert refused(working, working.build_receipt(task, **changes)) == "bad_receipt"
    receipt_hash = working.submit(task, units=2 * 2 * 8)
    assert working.states() == {receipt_hash: SubmissionState.SUBMITTED}


def test_record_submission__contributor_not_checksummed__is_no_message(working: FakePool):
    task = working.lease("a")
    receipt = working.build_receipt(task)
    assert refused(working, dataclasses.replace(receipt, contributor=receipt.contributor.lower())) == "bad_message"


# -- close_step


def test_close_step__enough_accepted__packs_the_oldest_in_order_of_policy_and_task(pool: FakePool):
    """With staleness 1 four tasks are out; what is accepted first in time is not what is packed first."""
    pool.params = make_params(max_staleness=1)
    pool.register("a", "b", "c", "d")
    pool.publish(0)
    made = [pool.work(name) for name in "abcd"]
    pool.dispatch()
    for receipt_hash in (made[3], made[1]):
        pool.decide(receipt_hash)
    with pool.database.read() as rows:
        assert [s.receipt_hash for s in rows.list_batch(0)] == [made[1], made[3]]
        assert rows.get_step(0).state is StepState.READY
    for receipt_hash in (made[0], made[2]):
        pool.decide(receipt_hash)
    with pool.database.read() as rows:
        assert [s.receipt_hash for s in rows.list_batch(0)] == [made[1], made[3]], "a batch that is ready stays"
    pool.publish(1)
    with pool.database.read() as rows:
        assert [s.receipt_hash for s in rows.list_batch(1)] == [made[0], made[2]]
        assert rows.get_step(1).state is StepState.READY, "they wait for the next step, and are fresh enough"


def test_close_step__accepted_but_too_old__is_paid_and_not_packed(pool: FakePool):
    pool.params = make_params(max_staleness=0)
    pool.register("a", "b")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.publish(1)
    pool.accept(receipt_hash)
    row = pool.submission(receipt_hash)
    assert (row.state, row.units, row.step) == (SubmissionState.ACCEPTED, 20, None)
    for name in ("a", "b"):
        pool.accept(pool.work(name))
    with pool.database.read() as rows:
        assert [s.policy_version for s in rows.list_batch(1)] == [1, 1]


def test_close_step__one_group_short__waits(working: FakePool):
    working.accept(working.work("a"))
    with working.database.write() as rows:
        assert steps.close_step(rows, working.params) is None
        assert rows.get_step(0).state is StepState.OPEN


def test_close_step__void_and_rejected_groups__never_count(working: FakePool):
    working.reject(working.work("a"), Reason.REWARD)
    working.accept(working.work("b"))
    with working.database.read() as rows:
        assert rows.get_step(0).state is StepState.OPEN
        assert rows.list_batch(0) == []
