"""Promises leave time for judging and for the next epoch, and never run longer than the ledger enforces."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain import promised_times
from covey.protocol.promises import compute_longest_promise
from tests.fakes.pool import make_params

pytestmark = pytest.mark.unit


def make_row(*, signed_at: int = 1000, due_by: int) -> SimpleNamespace:
    return SimpleNamespace(signed_at=signed_at, due_by=due_by, receipt_hash="0xa")


def test_compute_promise_seconds__long_epochs__gives_judging_two_epochs_and_a_transaction():
    params = make_params(receipt_seconds=86_400, epoch_seconds=3600)
    assert promised_times.compute_promise_seconds(params, 1800) == 86_400 + 2 * 3600 + 900
    assert promised_times.compute_promise_seconds(params, 7200) == 86_400 + 2 * 7200 + 900


def test_compute_promise_seconds__short_epochs__is_what_the_ledger_enforces():
    assert promised_times.compute_promise_seconds(make_params(receipt_seconds=86_400, epoch_seconds=10), 5) == 320


def test_compute_decide_by__long_promise__is_when_the_receipt_expires():
    params = make_params(receipt_seconds=86_400, epoch_seconds=3600)
    assert promised_times.compute_decide_by(params, make_row(due_by=1000 + 94_500)) == 1000 + 86_400


def test_compute_decide_by__short_promise__leaves_a_quarter_of_it_for_the_epoch():
    params = make_params(receipt_seconds=86_400, epoch_seconds=10)
    row = make_row(due_by=1320)
    assert promised_times.compute_decide_by(params, row) == 1240
    assert promised_times.find_due(params, [row], now=1239.9) == set()
    assert promised_times.find_due(params, [row], now=1240.0) == {"0xa"}


@given(
    receipt_seconds=st.integers(60, 30 * 86_400),
    epoch_seconds=st.integers(1, 86_400),
    epoch_length=st.integers(1, 86_400),
)
def test_compute_decide_by__any_pool__is_before_the_promise_is_due(
    receipt_seconds: int, epoch_seconds: int, epoch_length: int
):
    params = make_params(receipt_seconds=receipt_seconds, epoch_seconds=epoch_seconds)
    seconds = promised_times.compute_promise_seconds(params, epoch_length)
    assert 0 < seconds <= compute_longest_promise(epoch_length)
    assert 1000 < promised_times.compute_decide_by(params, make_row(due_by=1000 + seconds)) < 1000 + seconds
