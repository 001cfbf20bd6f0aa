"""Turns wait in order, those that one pass can serve are taken together, and a slow validator holds few."""

import asyncio
import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.validator import JudgeOrder
from tests.fakes.pool import make_hash
from tests.fakes.tools import Work
from validator.held_turns import MAX_WHOLE, HeldTurns

pytestmark = pytest.mark.unit


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> HeldTurns:
    return HeldTurns(8, clock=clock)


def make_order(honest: Work, judgement: int, *, policy: int = 0, pool: int = 1, **changes: Any) -> JudgeOrder:
    values: dict[str, Any] = {
        "judgement": judgement,
        "receipt": ReceiptBody.of(honest.receipt).model_copy(update={"policy_version": policy, "pool": pool}),
        "signature": "0x" + "1b" * 65,
        "url": "http://coordinator/file",
        "record_hash": make_hash("manifest"),
        "contract": "",
        "draw": make_hash("block"),
        "full": False,
        "seconds_left": 30.0,
    }
    return JudgeOrder(**(values | changes))


async def take(turns: HeldTurns, most: int = 8) -> list[int]:
    return [order.judgement for order in await asyncio.wait_for(turns.take_next(most), 10)]


async def test_take_next__turns_of_two_policies_and_contracts__are_taken_apart(turns: HeldTurns, honest: Work) -> None:
    other = make_hash("other")
    for judgement, changes in (
        (9, {}), (3, {"policy": 1}), (4, {}), (5, {"contract": other}), (6, {"record_hash": other}), (7, {"policy": 1}),
        (8, {"draw": other}), (10, {"pool": 2}),
    ):  # fmt: skip
        turns.add(make_order(honest, judgement, **changes))
    assert [await take(turns) for _ in range(5)] == [[3, 7], [4, 8, 9], [5], [6], [10]]
    assert sorted(turns.held) == [3, 4, 5, 6, 7, 8, 9, 10]


async def test_take_next__whole_replay__is_taken_by_its_deadline_and_alone(turns: HeldTurns, honest: Work) -> None:
    for judgement, full in ((1, True), (2, False), (3, True), (4, False)):
        turns.add(make_order(honest, judgement, full=full))
    assert [await take(turns) for _ in range(3)] == [[1], [2, 4], [3]]


async def test_take_next__row_turns_keep_coming__the_whole_replay_is_taken_before_it_is_late(
    turns: HeldTurns, clock: Clock, honest: Work
) -> None:
    """A cheat whose work is drawn whole must not evade its replay by handing in more work."""
    orders = {0: make_order(honest, 0, full=True, seconds_left=30.0)}
    turns.add(orders[0])
    taken: list[list[int]] = []
    for start in range(1, 30, 2):
        for judgement in (start, start + 1):
            orders[judgement] = make_order(honest, judgement, seconds_left=30.0)
            turns.add(orders[judgement])
        taken.append(await take(turns))
        clock.now += 5
        for judgement in taken[-1]:
            turns.close(orders[judgement])
    assert [0] in taken[:2]


async def test_take_next__bound__leaves_the_last_for_the_next_pass(turns: HeldTurns, honest: Work) -> None:
    for judgement in range(5):
        turns.add(make_order(honest, judgement))
    assert [await take(turns, most=2) for _ in range(3)] == [[0, 1], [2, 3], [4]]


async def test_take_next__overdue_turns__are_all_dropped_at_once(turns: HeldTurns, clock: Clock, honest: Work) -> None:
    for judgement, seconds in ((1, 3.0), (2, 2.0), (3, 30.0), (4, 3.0)):
        turns.add(make_order(honest, judgement, seconds_left=seconds))
    clock.now += 3
    with capture_logs() as lines:
        assert await take(turns) == [3]
    assert [line["judgement"] for line in lines] == [2, 1, 4]
    assert turns.held == (3,)
    turns.add(make_order(honest, 5, seconds_left=0.0))
    assert await take(turns) == []
    assert turns.held == (3,)


async def test_take_next__turn_that_waits_again__is_taken_again(turns: HeldTurns, honest: Work) -> None:
    order = make_order(honest, 1)
    turns.add(order)
    assert await take(turns) == [1]
    waiting = asyncio.create_task(turns.take_next(8))
    await asyncio.sleep(0)
    assert not waiting.done()
    turns.wait_again(order)
    assert await asyncio.wait_for(waiting, 10) == [order]


async def judge_all(turns: HeldTurns, clock: Clock, honest: Work, seconds: float) -> int:
    """Hold as many turns as there is room for, judge them in one pass, and return their number."""
    orders = [make_order(honest, judgement) for judgement in range(turns.free)]
    for order in orders:
        turns.add(order)
    await take(turns)
    clock.now += seconds * len(orders)
    for order in orders:
        turns.close(order)
    return len(orders)


@pytest.mark.parametrize(
    ("seconds", "held"),
    [
        (0.1, [2, 4, 8, 8]),
        (3.0, [2, 4, 8, 1]),  # eight turns take 24 of 30 seconds, more than half
        (7.0, [2, 4, 1, 2]),  # four turns take 28 seconds
        (20.0, [2, 1, 1, 1]),
    ],
)
async def test_free__pass_takes_half_of_the_time__fewer_turns_are_held(
    turns: HeldTurns, clock: Clock, honest: Work, seconds: float, held: list[int]
) -> None:
    assert [await judge_all(turns, clock, honest, seconds) for _ in held] == held


async def test_has_room__any_sequence_of_changes__is_set_if_and_only_if_a_turn_can_be_added(
    turns: HeldTurns, clock: Clock, honest: Work
) -> None:
    """An event that is set while nothing is free ends every poll at once, so that no verdict is revealed."""
    choices, judgement = random.Random(5), 0
    held: list[JudgeOrder] = []
    for _ in range(300):
        clock.now += choices.choice([0.0, 1.0, 9.0])
        if choices.random() < 0.6:
            judgement += 1
            held.append(make_order(honest, judgement, full=choices.random() < 0.2))
            turns.add(held[-1])
        elif held:
            turns.close(held.pop(choices.randrange(len(held))))
        assert turns.has_room.is_set() == (turns.free > 0)


def test_free__whole_replays__bound_what_is_held(turns: HeldTurns, honest: Work) -> None:
    orders = [make_order(honest, judgement, full=judgement < MAX_WHOLE) for judgement in range(MAX_WHOLE + 1)]
    for order in reversed(orders):
        turns.add(order)
    assert (turns.free, turns.has_room.is_set()) == (0, False)
    turns.close(orders[-1])
    assert (turns.free, turns.has_room.is_set()) == (0, False)
    turns.close(orders[0])
    assert (turns.free, turns.has_room.is_set()) == (3, True)
