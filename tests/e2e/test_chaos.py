"""One seed of `make chaos`, with fewer faults. Every night runs 20 seeds with all of them."""

import pytest

from tests.chaos.__main__ import run_seed

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SHORT = (
    "kill serve",
    "kill jobs",
    "take blocks back",
    "silent validator",
    "clock jumps back",
    "garbage answers of the chain's node",
    "stale answers of the chain's node",
    "full disk",
    "lock SQLite",
)
"""Faults after which work is settled soon. A clock that was ahead delays the drawing blocks by that much."""


def test_chaos__one_seed__every_promise_is_kept(capsys: pytest.CaptureFixture[str]):
    assert run_seed(26, count=5, lock_s=3.0, names=SHORT) == [], capsys.readouterr().out
