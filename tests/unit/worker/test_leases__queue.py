"""The lease queue against values worked out by hand: room, moves to the engine, expired leases."""

import pytest

from tests.fakes.tools import make_task
from worker.leases import GeneratedTask, LeaseQueue

pytestmark = pytest.mark.unit


def build(*tasks: int, together: int = 2, ahead: int = 1, versions: dict[int, int] | None = None) -> LeaseQueue:
    now = [0.0]
    queue = LeaseQueue(together=together, ahead=ahead, lease_seconds=30.0, clock=lambda: now[0], generation_seconds=1.0)
    for task in tasks:
        queue.hold(make_task(task=task, lease=task, policy_version=(versions or {}).get(task, 0)), seconds=30.0)
        now[0] += 10
    return queue


def take(queue: LeaseQueue) -> int | None:
    order = queue.take()
    return None if order is None else order.task


@pytest.mark.parametrize(
    ("claimed", "working", "seconds", "made", "unsent", "room"),
    [
        (0, 0, 0.0, 0, 0, True),
        (2, 0, 9.9, 0, 0, True),  # the third is ahead
        (1, 2, 9.9, 0, 0, False),
        (3, 0, 9.9, 0, 0, False),
        (0, 1, 10.0, 0, 0, True),  # the engine takes two
        (0, 2, 10.0, 0, 0, False),  # three tasks do not fit into a lease, so none is claimed ahead
        (0, 0, 0.0, 1, 1, True),
        (0, 0, 0.0, 1, 2, False),  # more submissions are unsent than the engine generates at once
    ],
)
def test_has_room__by_hand(claimed: int, working: int, seconds: float, made: int, unsent: int, room: bool) -> None:
    queue = build(*range(working + claimed))
    queue.clock = lambda: 0.0
    assert [take(queue) for _ in range(working)] == list(range(working))
    queue.generation_seconds = seconds
    queue.generated = [GeneratedTask(order=make_task(task=100 + n, lease=100 + n), drafts=()) for n in range(made)]
    assert queue.has_room(unsent) is room


def test_take__tasks_of_two_policies__are_not_in_the_engine_together() -> None:
    queue = build(1, 2, 3, 4, versions={3: 1})
    assert [take(queue) for _ in range(4)] == [1, 2, None, None]  # and 4 does not overtake 3 for ever
    queue.finish(make_task(task=1, lease=1), ())
    assert take(queue) is None
    queue.finish(make_task(task=2, lease=2), ())
    assert [take(queue), take(queue)] == [3, None]
    assert queue.ids == [4, 3, 1, 2]


def test_take__two_policies_of_one_version__are_not_in_the_engine_together() -> None:
    """A reorganisation came between them, and the engine holds the weights of one policy only."""
    queue = build(1)
    queue.hold(make_task(task=2, lease=2, record_hash="0x" + "ab" * 32), seconds=30.0)
    assert [take(queue), take(queue)] == [1, None]
    queue.finish(make_task(task=1, lease=1), ())
    assert take(queue) == 2


def test_take__nothing_claimed__is_none() -> None:
    assert build().take() is None


def test_requeue__task_that_failed__is_the_next_one() -> None:
    queue = build(1, 2, 3)
    assert [take(queue), take(queue)] == [1, 2]
    queue.requeue(make_task(task=2, lease=2), deaths=0)
    assert queue.ids == [2, 3, 1]
    assert take(queue) == 2


@pytest.mark.parametrize("end", ["requeue", "finish"])
def test_release__lease_that_the_engine_works_on__keeps_its_place_until_that_is_done(end: str) -> None:
    queue = build(1, 2, 3)
    order = queue.take()
    assert order is not None
    queue.release([order])
    assert queue.ids == [2, 3]
    assert not queue.has_room(0)  # two leases wait, and the engine is busy with the third
    queue.requeue(order, deaths=1) if end == "requeue" else queue.finish(order, ())
    assert (queue.ids, queue.generated) == ([2, 3], [])


def test_has_room__first_task_or_a_slow_one__claims_nothing_ahead() -> None:
    now = [0.0]
    queue = LeaseQueue(together=1, ahead=1, lease_seconds=30.0, clock=lambda: now[0])
    assert queue.has_room(0)
    queue.hold(make_task(task=1, lease=1), seconds=30.0)
    assert not queue.has_room(0)  # it is not yet known how long a task takes
    order = queue.take()
    assert order is not None
    now[0] = 2.0
    queue.finish(order, ())
    queue.hold(make_task(task=2, lease=2), seconds=30.0)
    assert (queue.generation_seconds, queue.has_room(0)) == (2.0, True)
    assert take(queue) == 2
    now[0] = 11.9
    assert queue.has_room(0)
    now[0] = 12.1  # this task is slow: another one would not finish in time
    assert not queue.has_room(0)


def test_drop_overdue__lease_of_30_seconds__is_forgotten_after_them() -> None:
    queue = build(1, 2, 3, 4)  # collected at 0, 10, 20 and 30; now it is 40
    order = queue.take()
    assert order is not None
    queue.finish(order, ())
    assert take(queue) == 2
    assert queue.ids == [3, 4, 2, 1]
    assert [order.task for order in queue.drop_overdue()] == [1]  # generated, and never signed for
    assert queue.ids == [3, 4, 2]


@pytest.mark.parametrize(
    ("seconds", "dropped"), [(30.0, []), (90.0, []), (24.0, []), (20.0, [1]), (0.0, [1]), (-9.0, [1])]
)
def test_drop_overdue__lease_collected_again_after_a_crash__lasts_for_its_remaining_time(
    seconds: float, dropped: list[int]
) -> None:
    now = [100.0]
    queue = LeaseQueue(together=1, ahead=1, lease_seconds=30.0, clock=lambda: now[0])
    queue.hold(make_task(task=1, lease=1), seconds=seconds)
    now[0] += 22.0
    assert [order.task for order in queue.drop_overdue()] == dropped
