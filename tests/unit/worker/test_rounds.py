"""Which pool a worker with several chooses, and when it leaves."""

from types import SimpleNamespace

import pytest

from covey.errors import OperatorError
from worker.rounds import PoolSeat, Rounds

pytestmark = pytest.mark.unit


def build(preference: str = "pay", *prices: float, stay: float = 600.0) -> Rounds:
    seats = [PoolSeat(config=SimpleNamespace(pool=i), price=price) for i, price in enumerate(prices or (1.0, 3.0, 2.0))]
    return Rounds(seats=seats, preference=preference, stay_seconds=stay, idle_seconds=30.0)


@pytest.mark.parametrize(("preference", "expected"), [("pay", 1), ("fair", 2), ("first", 0)])
def test_choose__all_have_work__follows_the_preference(preference: str, expected: int):
    rounds = build(preference)
    for seat, worked in zip(rounds.seats, (300.0, 200.0, 100.0), strict=True):
        seat.worked_seconds = worked
    assert rounds.choose(0.0) is rounds.seats[expected]


def test_choose__all_rest__takes_the_one_that_rests_least():
    rounds = build()
    for seat, rest in zip(rounds.seats, (50.0, 60.0, 40.0), strict=True):
        seat.rests_until = rest
    assert rounds.choose(10.0) is rounds.seats[2]


def test_leave__pool_without_work__rests_and_another_is_next_until_it_may_have_work_again():
    rounds = build()
    best, second = rounds.seats[1], rounds.seats[2]
    assert rounds.is_over(best, 29.0, begun=0.0, useful_at=0.0) is False
    assert rounds.is_over(best, 30.0, begun=0.0, useful_at=0.0)
    rounds.leave(best, 30.0, begun=0.0, useful_at=0.0)
    assert rounds.choose(30.0) is second
    assert rounds.is_over(second, 629.0, begun=30.0, useful_at=629.0) is False
    assert rounds.is_over(second, 630.0, begun=30.0, useful_at=630.0)
    rounds.leave(second, 630.0, begun=30.0, useful_at=630.0)
    assert rounds.choose(630.0) is best


def test_is_over__preferred_pool_with_work__is_never_left():
    rounds = build("first")
    assert rounds.is_over(rounds.seats[0], 1e9, begun=0.0, useful_at=1e9) is False


def test_is_over__fair__leaves_after_a_stay_for_the_pool_with_less_time():
    rounds = build("fair", 1.0, 1.0)
    one, two = rounds.seats
    assert rounds.is_over(one, 599.0, begun=0.0, useful_at=599.0) is False
    assert rounds.is_over(one, 600.0, begun=0.0, useful_at=600.0)
    rounds.leave(one, 600.0, begun=0.0, useful_at=600.0)
    assert rounds.choose(600.0) is two
    assert rounds.is_over(two, 1199.0, begun=600.0, useful_at=1199.0) is False


def test_is_over__single_pool__is_never_left():
    rounds = build("pay", 1.0)
    assert rounds.is_over(rounds.seats[0], 1e9, begun=0.0, useful_at=0.0) is False


def test_choose__refused_by_all__raises_the_last_refusal():
    rounds = build("pay", 1.0, 2.0)
    for i, seat in enumerate(rounds.seats):
        seat.refusal = OperatorError("unknown_node", f"refusal {i}", fix="Register")
    with pytest.raises(OperatorError, match="refusal 1"):
        rounds.choose(0.0)


def test_is_over__pool_without_money__is_left_at_once_and_rests():
    rounds = build("first", 1.0, 1.0)
    one, two = rounds.seats
    assert rounds.is_over(one, 1.0, begun=0.0, useful_at=1.0) is False
    assert rounds.is_over(one, 1.0, begun=0.0, useful_at=1.0, is_paid=False)
    rounds.leave(one, 1.0, begun=0.0, useful_at=1.0, is_paid=False)
    assert (one.rests_until, one.worked_seconds) == (601.0, 1.0)
    assert rounds.choose(2.0) is two


def test_is_over__no_pool_has_money__stays_until_another_one_may_have_some():
    """Otherwise the worker would join one after the other without a pause."""
    rounds = build("first", 1.0, 1.0)
    one, two = rounds.seats
    rounds.leave(one, 1.0, begun=0.0, useful_at=1.0, is_paid=False)
    assert rounds.is_over(two, 600.0, begun=2.0, useful_at=600.0, is_paid=False) is False
    assert rounds.is_over(two, 601.0, begun=2.0, useful_at=601.0, is_paid=False)


def test_is_over__single_pool_without_money__is_never_left():
    rounds = build("pay", 1.0)
    assert rounds.is_over(rounds.seats[0], 1e9, begun=0.0, useful_at=1e9, is_paid=False) is False
