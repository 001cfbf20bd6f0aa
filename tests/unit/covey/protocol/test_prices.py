"""Rewards by the price of 1,000,000 units: values by hand, the vectors' file, and that parts never exceed their sum."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.prices import compute_reward
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
    """The epoch reserves at most one unit of the token more per contributor than they earn."""
    left = compute_reward(sum(units), price) - sum(compute_reward(each, price) for each in units)
    assert 0 <= left <= max(0, len(units) - 1)


def test_compute_reward__vectors__are_what_the_contract_computes_too():
    rows = json.loads(Path(HERE / "prices.json").read_text())["rewards"]
    assert len(rows) == 7
    for row in rows:
        assert int(row["units"]) * int(row["price"]) // 1_000_000 == int(row["reward"])
