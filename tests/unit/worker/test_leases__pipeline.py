"""What is in hand, by hand: room, what the engine takes, leases that run out."""

import pytest

from tests.fakes.tools import make_task
from worker.leases import GeneratedTask, Pipeline

pytestmark = pytest.mark.unit


def build(*tasks: int, together: int = 2, ahead: int = 1, versions: dict[int, int] | None = None) -> Pipeline:
    now = [0.0]
    pipeline = Pipeline(
        together=together, ahead=ahead, lease_seconds=30.0, clock=lambda: now[0], generation_seconds=1.0
    )
    for task in tasks:
        pipeline.hold(make_task(task=task, lease=task, policy_version=(versions or {}).get(task, 0)), seconds=30.0)
        now[0] += 10
    return pipeline


def take(pipeline: Pipeline) -> int | None:
    order = pipeline.take()
    return None if order is None else order.task


@pytest.mark.parametrize(
    ("claimed", "working", "seconds", "made", "unsent", "room"),
    [
        (0, 0, 0.0, 0, 0, True),
        (2, 0, 9.9, 0, 0, True),  # the third is ahead
        (1, 2, 9.9, 0, 0, False),
        (3, 0, 9.9, 0, 0, False),
        (0, 1, 10.0, 0, 0, True),  # the engine takes two
        (0, 2, 10.0, 0, 0, False),  # three tasks do not fit into a lease: none waits
        (0, 0, 0.0, 1, 1, True),
        (0, 0, 0.0, 1, 2, False),  # more waits to be sent than the engine makes at once
    ],
)
def test_has_room__by_hand(claimed: int, working: int, seconds: float, made: int, unsent: int, room: bool) -> None:
    pipeline = build(*range(working + claimed))
    pipeline.clock = lambda: 0.0
    assert [take(pipeline) for _ in range(working)] == list(range(working))
    pipeline.generation_seconds = seconds
    pipeline.made = [GeneratedTask(order=make_task(task=100 + n, lease=100 + n), drafts=()) for n in range(made)]
    assert pipeline.has_room(unsent) is room


def test_take__tasks_of_two_policies__are_not_in_the_engine_together() -> None:
    pipeline = build(1, 2, 3, 4, versions={3: 1})
    assert [take(pipeline) for _ in range(4)] == [1, 2, None, None]  # and 4 does not overtake 3 for ever
    pipeline.finish(make_task(task=1, lease=1), ())
    assert take(pipeline) is None
    pipeline.finish(make_task(task=2, lease=2), ())
    assert [take(pipeline), take(pipeline)] == [3, None]
    assert pipeline.leases == [4, 3, 1, 2]


def test_take__two_policies_of_one_version__are_not_in_the_engine_together() -> None:
    """A reorganisation came between them: the engine has room for the weights of one."""
    pipeline = build(1)
    pipeline.hold(make_task(task=2, lease=2, manifest_hash="0x" + "ab" * 32), seconds=30.0)
    assert [take(pipeline), take(pipeline)] == [1, None]
    pipeline.finish(make_task(task=1, lease=1), ())
    assert take(pipeline) == 2


def test_take__nothing_claimed__is_none() -> None:
    assert build().take() is None


def test_put_back__task_that_failed__is_the_next_one() -> None:
    pipeline = build(1, 2, 3)
    assert [take(pipeline), take(pipeline)] == [1, 2]
    assert pipeline.put_back(make_task(task=2, lease=2), code="wrong_policy") == 0
    assert pipeline.leases == [2, 3, 1]
    assert take(pipeline) == 2


def test_put_back__one_hang_with_others_in_the_engine__counts_once_and_is_nobodys_death() -> None:
    now = [0.0]
    pipeline = Pipeline(together=3, ahead=0, lease_seconds=30.0, clock=lambda: now[0])
    orders = [make_task(task=n, lease=n) for n in (1, 2, 3)]
    found = []
    for _ in range(2):
        for order in orders:
            pipeline.hold(order, seconds=30.0)
            pipeline.take()
        now[0] += 5.0
        codes = ("engine_timeout", "engine_timeout", "engine_died")
        found.append([pipeline.put_back(order, code=code) for order, code in zip(orders, codes, strict=True)])
        pipeline.let_go(orders)
        now[0] += 1.0
    assert found == [[1, 1, 0], [2, 2, 0]]


@pytest.mark.parametrize("end", ["put_back", "finish"])
def test_let_go__lease_that_the_engine_works_on__keeps_its_place_until_that_is_done(end: str) -> None:
    pipeline = build(1, 2, 3)
    order = pipeline.take()
    assert order is not None
    pipeline.let_go([order])
    assert pipeline.leases == [2, 3]
    assert not pipeline.has_room(0)  # two of three places wait, and the engine is busy with the third
    pipeline.put_back(order, code="engine_died") if end == "put_back" else pipeline.finish(order, ())
    assert (pipeline.leases, pipeline.made) == ([2, 3], [])


def test_has_room__first_task_or_a_slow_one__claims_nothing_ahead() -> None:
    now = [0.0]
    pipeline = Pipeline(together=1, ahead=1, lease_seconds=30.0, clock=lambda: now[0])
    assert pipeline.has_room(0)
    pipeline.hold(make_task(task=1, lease=1), seconds=30.0)
    assert not pipeline.has_room(0)  # nobody knows how long a task takes
    order = pipeline.take()
    assert order is not None
    now[0] = 2.0
    pipeline.finish(order, ())
    pipeline.hold(make_task(task=2, lease=2), seconds=30.0)
    assert (pipeline.generation_seconds, pipeline.has_room(0)) == (2.0, True)
    assert take(pipeline) == 2
    now[0] = 11.9
    assert pipeline.has_room(0)
    now[0] = 12.1  # this one is slow: another would not be done in time
    assert not pipeline.has_room(0)


def test_drop_overdue__lease_of_30_seconds__is_forgotten_after_them() -> None:
    pipeline = build(1, 2, 3, 4)  # collected at 0, 10, 20 and 30; now it is 40
    order = pipeline.take()
    assert order is not None
    pipeline.finish(order, ())
    assert take(pipeline) == 2
    assert pipeline.leases == [3, 4, 2, 1]
    assert [order.task for order in pipeline.drop_overdue()] == [1]  # generated, and never signed for
    assert pipeline.leases == [3, 4, 2]


@pytest.mark.parametrize(
    ("seconds", "dropped"), [(30.0, []), (90.0, []), (24.0, []), (20.0, [1]), (0.0, [1]), (-9.0, [1])]
)
def test_drop_overdue__lease_that_comes_again_after_a_crash__lasts_as_long_as_is_left(
    seconds: float, dropped: list[int]
) -> None:
    now = [100.0]
    pipeline = Pipeline(together=1, ahead=1, lease_seconds=30.0, clock=lambda: now[0])
    pipeline.hold(make_task(task=1, lease=1), seconds=seconds)
    now[0] += 22.0
    assert [order.task for order in pipeline.drop_overdue()] == dropped
