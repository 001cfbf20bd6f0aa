"""Generation, validation and training go on while a policy is published, as far as `max_staleness` admits."""

import pytest

from covey.protocol.status import StepState, TaskState
from tests.fakes.pool import FakePool, make_hash, make_params

pytestmark = pytest.mark.unit

BATCH = 2
"""Tasks of a batch."""


def read_steps(pool: FakePool) -> list[StepState]:
    with pool.database.read() as rows:
        return [step.state for step in rows.list_steps()]


@pytest.mark.parametrize("staleness", [1, 2])
def test_open_step__batches_made_while_the_one_before_was_trained__wait_for_it(pool: FakePool, staleness: int):
    pool.params = make_params(max_staleness=staleness)
    pool.register("a")
    pool.publish(0)
    for _ in range(BATCH):
        pool.accept(pool.work("a"))
    assert read_steps(pool) == [StepState.READY]  # the trainer has it from here on
    for _ in range(staleness * BATCH):
        pool.accept(pool.work("a"))
    assert pool.tasks(TaskState.PENDING, TaskState.ASSIGNED) == []
    for step in range(1, 1 + staleness):
        pool.publish(step)
        assert read_steps(pool) == [StepState.TRAINED] * step + [StepState.READY]
    pool.publish(1 + staleness)
    assert read_steps(pool)[-1] is StepState.OPEN


def test_open_step__no_staleness__generates_nothing_that_training_would_outdate(pool: FakePool):
    pool.params = make_params(max_staleness=0)
    pool.register("a")
    pool.publish(0)
    for _ in range(BATCH):
        pool.accept(pool.work("a"))
    assert read_steps(pool) == [StepState.READY]
    assert pool.tasks(TaskState.PENDING, TaskState.ASSIGNED) == []
    pool.publish(1)
    assert read_steps(pool) == [StepState.TRAINED, StepState.OPEN]


@pytest.mark.parametrize("staleness", [1, 2])
def test_open_ahead__batches_wait_and_policies_are_not_on_chain__are_packed_for_who_asks(
    pool: FakePool, staleness: int
):
    pool.params = make_params(max_staleness=staleness)
    pool.register("a")
    pool.publish(0)
    for _ in range((1 + staleness) * BATCH):
        pool.accept(pool.work("a"))
    for step in range(1, 1 + staleness):
        assert read_steps(pool) == [StepState.READY] * step  # none is packed before somebody asks
        pool.open_ahead(step)
        pool.open_ahead(step)
    assert read_steps(pool) == [StepState.READY] * (1 + staleness)
    pool.open_ahead(1 + staleness)  # work of policy 0 is too old for it
    assert read_steps(pool) == [StepState.READY] * (1 + staleness) + [StepState.OPEN]
    assert pool.tasks(TaskState.PENDING) == []
    for step in range(1, 2 + staleness):
        pool.publish(step)
        assert read_steps(pool)[: step + 1] == [StepState.TRAINED] * step + [
            StepState.OPEN if step == 1 + staleness else StepState.READY
        ]
        assert [task.policy_version for task in pool.tasks(TaskState.PENDING)][-BATCH:] == [step] * BATCH
    with pool.database.read() as rows:
        assert [row.record_hash for row in rows.list_steps()] == [
            make_hash(f"policy {n}") for n in range(2 + staleness)
        ]


def test_open_ahead__step_that_is_not_next__does_not_open(pool: FakePool):
    pool.params = make_params(max_staleness=1)
    pool.register("a")
    for step in (0, 1):
        pool.open_ahead(step)
    assert read_steps(pool) == []
    pool.publish(0)
    for step in (0, 1, 2, 2**63 - 1):
        pool.open_ahead(step)
    assert read_steps(pool) == [StepState.OPEN]


def test_open_ahead__step_opens__work_goes_on_with_the_newest_policy_on_chain(pool: FakePool):
    pool.params = make_params(max_staleness=1)
    pool.register("a", "b")
    pool.publish(0)
    for _ in range(BATCH):
        pool.accept(pool.work("a"))
    late = pool.lease("b")
    pool.open_ahead(1)
    pool.accept(pool.work("a"))
    assert read_steps(pool) == [StepState.READY, StepState.OPEN]
    pool.accept(pool.submit(late))
    assert (late.policy_version, read_steps(pool)) == (0, [StepState.READY, StepState.READY])
    pool.publish(1)
    assert pool.lease("a").policy_version == 1


def test_open_ahead__batch_is_packed__older_work_that_is_still_out_counts_for_nothing(pool: FakePool):
    pool.params = make_params(max_staleness=1)
    pool.register("a", "b")
    pool.publish(0)
    late = pool.lease("b")
    for _ in range(BATCH + 1):
        pool.accept(pool.work("a"))
    assert pool.tasks(TaskState.PENDING) == []
    pool.publish(1)
    assert len(pool.tasks(TaskState.PENDING)) == BATCH
    for _ in range(BATCH):
        pool.accept(pool.work("a"))  # the first of them fills batch 1
    assert read_steps(pool) == [StepState.TRAINED, StepState.READY]
    pool.expire()
    assert len(pool.tasks(TaskState.PENDING)) == 1, "what node b has is too old for batch 2: one more is wanted"
    assert [task.id for task in pool.tasks(TaskState.ASSIGNED)] == [late.id]
