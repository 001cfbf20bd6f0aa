"""Rewards by the price of 1,000,000 units: values by hand, the vectors' file, and that parts never exceed their sum."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.prices import (
    EpochPrices,
    ScheduledPrice,
    compute_reward,
    compute_start,
    find_highest_price,
    find_price,
)
from tests.vectors.make import HERE

pytestmark = pytest.mark.unit
UNITS = st.lists(st.integers(0, 2**64 - 1), max_size=40)


@pytest.mark.parametrize(
    ("units", "price", "reward"),
    [(1500, 2000, 3), (1499, 2000, 2), (20, 3_000_000, 60), (1, 999_999, 0), (1_000_000, 1, 1), (7, 0, 0)],
)
def test_compute_reward__units_at_a_price__is_rounded_down(units: int, price: int, reward: int):
    assert compute_reward(units, price) == reward


@given(UNITS, st.integers(0, 2**96 - 1))
def test_compute_reward__units_of_contributors__never_earn_more_than_their_epoch(units: list[int], price: int):
    """The epoch reserves less than one unit of the token more per contributor than they earn."""
    left = compute_reward(sum(units), price) - sum(compute_reward(each, price) for each in units)
    assert 0 <= left <= max(0, len(units) - 1)


def test_compute_reward__vectors__are_what_the_contract_computes_too():
    rows = json.loads(Path(HERE / "prices.json").read_text())["rewards"]
    assert len(rows) == 7
    for row in rows:
        assert int(row["units"]) * int(row["price"]) // 1_000_000 == int(row["reward"])


@pytest.mark.parametrize(("begun_at", "price"), [(0, 3), (99, 3), (100, 5), (100 + 899, 5), (1000, 2), (10**9, 2)])
def test_find_price__epoch_began__has_the_newest_price_that_held(begun_at: int, price: int):
    prices = [ScheduledPrice(reward_per_million=p, start=start) for p, start in ((3, 0), (5, 100), (2, 1000))]
    assert find_price(prices, begun_at) == price


@pytest.mark.parametrize(("epoch", "price"), [(0, 3), (1, 3), (2, 5), (3, 2), (4, 5), (None, 5)])
def test_find__epoch__has_the_price_of_the_time_when_the_previous_was_posted(epoch: int | None, price: int):
    """Epoch 3 is not posted, so 4 would begin now, at 500."""
    prices = [ScheduledPrice(reward_per_million=p, start=start) for p, start in ((3, 0), (5, 100), (2, 1000))]
    found = EpochPrices(prices=prices, posted_at={0: 99, 1: 100, 2: 1000}, now=500)
    assert found.find(epoch) == price
    assert (found.present, find_highest_price(prices)) == (5, 5)


@pytest.mark.parametrize(("price", "start"), [(6, 1010), (4, 1500), (0, 1500)])
def test_compute_start__raise_or_lowering__waits_its_window(price: int, start: int):
    assert compute_start(present=5, price=price, now=1000, challenge_window=10, unbond_window=500) == start
