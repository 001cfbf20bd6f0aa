"""Expected pay, worked out by hand."""

from types import SimpleNamespace

import pytest

from covey.network.earnings import Earnings, expect_earnings

pytestmark = pytest.mark.unit

TERMS = SimpleNamespace(
    reward_per_million=3_000_000, epoch_length=7, challenge_window=100, veto_window=200, min_stake=50, unbond_window=900
)


def test_expect_earnings__speed__gives_pay_and_times():
    assert expect_earnings(TERMS, SimpleNamespace(epoch_seconds=20), 2.5) == Earnings(
        per_hour=27_000, per_day=648_000, claimable_seconds=320, stake=50, locked_seconds=900
    )


def test_expect_earnings__unreadable_parameters__assumes_the_shortest_epoch():
    assert expect_earnings(TERMS, None, 1.0).claimable_seconds == 307
