"""When an epoch closes: by the clock, when it is full, at the pool's end, and never when the ledger would refuse it."""

from dataclasses import replace

import pytest

from coordinator.domain import settlement
from tests.fakes.pool import FakePool
from tests.unit.coordinator.domain.test_settlement import LEDGER, close, is_due, post

pytestmark = pytest.mark.unit


def test_is_due__nothing_decided__never(earning: FakePool):
    earning.work("a")
    earning.now += 1000
    assert not is_due(earning)


def test_is_due__by_the_clock__counts_from_the_first_decision_then_from_the_last_epoch(earning: FakePool):
    earning.decide(earning.work("a"))
    earning.now += 19.9
    assert not is_due(earning)
    earning.now += 0.1
    assert is_due(earning)
    close(earning)
    post(earning, 0)
    earning.now += 19.9
    earning.decide(earning.work("a"))
    assert not is_due(earning)
    earning.now += 0.1
    assert is_due(earning)


def test_is_due__enough_leaves__at_once(earning: FakePool):
    for _ in range(3):
        earning.decide(earning.work("a"))
    assert not is_due(earning)
    earning.decide(earning.work("a"))
    assert is_due(earning)


@pytest.mark.parametrize(("cap", "due"), [(40, False), (39, True)])
def test_is_due__more_units_than_one_epoch_may_have__at_once(earning: FakePool, cap: int, due: bool):
    for _ in range(2):
        earning.decide(earning.work("a", units=20))
    with earning.database.read() as rows:
        ledger = replace(LEDGER, epoch_units=cap)
        assert settlement.is_due(rows, earning.params, ledger, now=earning.now, chain_time=0) is due


def test_is_due__two_epochs_not_posted__waits(earning: FakePool):
    for _ in range(2):
        earning.decide(earning.work("a"))
        earning.now += 1000
        assert is_due(earning)
        close(earning)
    earning.decide(earning.work("a"))
    earning.now += 1000
    assert not is_due(earning)
    post(earning, 0)
    assert is_due(earning)


def test_is_due__pool_ended__as_soon_as_everything_is_decided(earning: FakePool):
    first, second = earning.work("a"), earning.work("b")
    earning.decide(first)
    with earning.database.write() as rows:
        rows.set_fact("ended", 7)
    assert not is_due(earning)
    earning.decide(second)
    assert is_due(earning)


@pytest.mark.parametrize(("chain_time", "due"), [(514.9, False), (515, True)])
def test_is_due__ledger_that_would_refuse__waits_for_the_chains_clock(earning: FakePool, chain_time: float, due: bool):
    """Posted at 500 and 15 s apart at least; at the pool's end too."""
    first, second = earning.work("a"), earning.work("a")
    earning.decide(first)
    close(earning)
    post(earning, 0, at=500)
    earning.decide(second)
    earning.now += 1000
    assert is_due(earning, chain_time=chain_time) is due
    with earning.database.write() as rows:
        rows.set_fact("ended", 7)
    assert is_due(earning, chain_time=chain_time) is due


def test_is_due__first_epoch__whatever_the_chains_clock(earning: FakePool):
    earning.decide(earning.work("a"))
    earning.now += 1000
    assert is_due(earning, chain_time=0)


def test_is_due__nothing_that_fits_into_an_epoch__never(earning: FakePool):
    earning.decide(earning.work("a", units=20))
    earning.now += 1000
    with earning.database.read() as rows:
        for cap, due in ((20, True), (19, False)):
            ledger = replace(LEDGER, epoch_units=cap)
            assert settlement.is_due(rows, earning.params, ledger, now=earning.now, chain_time=0) is due


def test_is_due__pool_has_ended_and_one_submission_is_stuck__others_are_paid_by_the_clock(earning: FakePool):
    """Otherwise a submission that validators leave undecided costs everybody the last epoch."""
    earning.decide(earning.work("a"))
    earning.work("b")
    with earning.database.write() as rows:
        rows.set_fact("ended", 9)
    assert not is_due(earning)
    earning.now += earning.params.epoch_seconds
    assert is_due(earning)
