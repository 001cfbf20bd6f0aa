"""Generation and validation go on while a step is trained and published, as far as `max_staleness` admits."""

import pytest

from covey.protocol.status import StepState, TaskState
from tests.fakes.pool import FakePool, make_params

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
