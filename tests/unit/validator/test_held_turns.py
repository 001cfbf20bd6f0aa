"""Turns wait in order, and those that one pass can serve are taken together while none becomes late."""

import asyncio
from typing import Any

import pytest

from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.validator import JudgeOrder
from tests.fakes.pool import make_hash
from tests.fakes.tools import Work
from validator.held_turns import MOST_WHOLE, HeldTurns

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
    """A queue that knows that a turn of drawn rows takes one second."""
    turns = HeldTurns(8, clock=clock)
    turns.note_seconds(4.0, 4)
    return turns


def make_order(honest: Work, judgement: int, *, policy: int = 0, **changes: Any) -> JudgeOrder:
    values: dict[str, Any] = {
        "judgement": judgement,
        "receipt": ReceiptBody.of(honest.receipt).model_copy(update={"policy_version": policy}),
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
        (8, {"draw": other}),
    ):  # fmt: skip
        turns.add(make_order(honest, judgement, **changes))
    assert [await take(turns) for _ in range(4)] == [[3, 7], [4, 8, 9], [5], [6]]
    assert sorted(turns.held) == [3, 4, 5, 6, 7, 8, 9]


async def test_take_next__whole_replay__is_last_and_alone(turns: HeldTurns, honest: Work) -> None:
    for judgement, full in ((1, True), (2, False), (3, True), (4, False)):
        turns.add(make_order(honest, judgement, full=full))
    assert [await take(turns) for _ in range(3)] == [[2, 4], [1], [3]]


async def test_take_next__bound__leaves_the_last_for_the_next_pass(turns: HeldTurns, honest: Work) -> None:
    for judgement in range(5):
        turns.add(make_order(honest, judgement))
    assert [await take(turns, most=2) for _ in range(3)] == [[0, 1], [2, 3], [4]]


async def test_take_next__nothing_is_known_of_the_machine__takes_one(clock: Clock, honest: Work) -> None:
    turns = HeldTurns(8, clock=clock)
    for judgement in range(3):
        turns.add(make_order(honest, judgement))
    assert await take(turns) == [0]
    turns.note_seconds(1.0, 1)
    assert await take(turns) == [1, 2]


async def test_take_next__first_one_has_little_time__takes_only_what_ends_in_half_of_it(
    turns: HeldTurns, clock: Clock, honest: Work
) -> None:
    """Of ten seconds, five turns of one second each use half."""
    for judgement in range(8):
        turns.add(make_order(honest, judgement))
    clock.now += 20
    assert await take(turns) == [0, 1, 2, 3, 4]


async def test_take_next__newer_turn_with_too_little_time_for_a_pass__comes_first_and_alone(
    turns: HeldTurns, honest: Work
) -> None:
    for judgement, seconds in ((0, 30.0), (1, 3.0), (2, 30.0)):
        turns.add(make_order(honest, judgement, seconds_left=seconds))
    assert [await take(turns) for _ in range(2)] == [[1], [0, 2]]


async def test_take_next__turn_that_waits_again__is_taken_again(turns: HeldTurns, honest: Work) -> None:
    order = make_order(honest, 1)
    turns.add(order)
    assert await take(turns) == [1]
    waiting = asyncio.create_task(turns.take_next(8))
    await asyncio.sleep(0)
    assert not waiting.done()
    turns.wait_again(order)
    assert await asyncio.wait_for(waiting, 10) == [order]


@pytest.mark.parametrize(
    ("seconds", "free"), [(None, 1), (0.0, 7), (1.5, 7), (3.0, 4), (10.0, 1), (60.0, 1)]
)  # all after one that is held
async def test_free__turns_that_cannot_be_judged_in_half_of_the_time__are_left_to_others(
    clock: Clock, honest: Work, seconds: float | None, free: int
) -> None:
    turns = HeldTurns(8, clock=clock)
    turns.add(make_order(honest, 1))
    if seconds is not None:
        turns.note_seconds(seconds, 1)
    assert turns.free == free


def test_free__whole_replays__bound_what_is_held(turns: HeldTurns, honest: Work) -> None:
    orders = [make_order(honest, judgement, full=judgement < MOST_WHOLE) for judgement in range(MOST_WHOLE + 1)]
    for order in reversed(orders):
        turns.add(order)
    assert (turns.free, turns.has_room.is_set()) == (0, False)
    turns.close(orders[-1])
    assert (turns.free, turns.has_room.is_set()) == (0, False)
    turns.close(orders[0])
    assert (turns.free, turns.has_room.is_set()) == (7, True)
