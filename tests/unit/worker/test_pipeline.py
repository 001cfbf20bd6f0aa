"""What is in hand, by hand: room, batches, leases that run out."""

import pytest

from tests.fakes.tools import make_task
from worker.pipeline import Made, Pipeline

pytestmark = pytest.mark.unit


def build(*tasks: int, together: int = 2, ahead: int = 1, versions: dict[int, int] | None = None) -> Pipeline:
    now = [0.0]
    pipeline = Pipeline(together=together, ahead=ahead, lease_seconds=30.0, clock=lambda: now[0])
    for task in tasks:
        pipeline.hold(make_task(task=task, lease=task, policy_version=(versions or {}).get(task, 0)))
        now[0] += 10
    return pipeline


@pytest.mark.parametrize(
    ("claimed", "seconds", "made", "unsent", "room"),
    [
        (0, 0.0, 0, 0, True),
        (2, 9.9, 0, 0, True),  # the third is ahead
        (3, 9.9, 0, 0, False),
        (1, 10.0, 0, 0, False),  # three batches do not fit into a lease: one at a time
        (0, 10.0, 0, 0, True),
        (0, 0.0, 1, 1, True),
        (0, 0.0, 1, 2, False),  # more waits to be sent than the engine makes at once
    ],
)
def test_has_room__by_hand(claimed: int, seconds: float, made: int, unsent: int, room: bool) -> None:
    pipeline = build(*range(claimed))
    pipeline.generation_seconds = seconds
    pipeline.made = [Made(order=make_task(task=100 + n, lease=100 + n), drafts=()) for n in range(made)]
    assert pipeline.has_room(unsent) is room


def test_get_batch__tasks_of_two_policies__are_not_mixed() -> None:
    pipeline = build(1, 2, 3, versions={2: 1})
    assert [order.task for order in pipeline.get_batch()] == [1, 3]
    pipeline.finish([Made(order=order, drafts=()) for order in pipeline.get_batch()], 1.0)
    assert [order.task for order in pipeline.get_batch()] == [2]
    assert pipeline.leases == [2, 1, 3]


def test_get_batch__more_than_fit__are_the_oldest() -> None:
    assert [order.task for order in build(1, 2, 3).get_batch()] == [1, 2]
    assert build().get_batch() == []


def test_drop_overdue__lease_of_30_seconds__is_forgotten_after_them() -> None:
    pipeline = build(1, 2, 3, 4)  # collected at 0, 10, 20 and 30; now it is 40
    pipeline.finish([Made(order=order, drafts=()) for order in pipeline.get_batch()], 1.0)
    assert pipeline.leases == [3, 4, 1, 2]
    assert [order.task for order in pipeline.drop_overdue()] == [1]  # generated, and never signed for
    assert pipeline.leases == [3, 4, 2]
