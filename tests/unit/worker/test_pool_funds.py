"""Whether a pool can pay, worked out by hand: at a price of 2,000,000 a unit earns 2."""

import asyncio
from types import SimpleNamespace

import pytest

from covey.protocol.prices import ScheduledPrice
from covey.runtime.cycle import CycleResult
from tests.fakes.pool import make_terms
from worker import pool_funds
from worker.context import PoolFunds
from worker.pool_funds import PoolMoney, is_enough, watch_funds

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("free", "newest", "fees", "waiting", "expected"),
    [
        (200, 0, 0, 0, True),  # a task of 100 units
        (199, 0, 0, 0, False),
        (260, 0, 0, 30, True),
        (259, 0, 0, 30, False),
        (300, 300, 0, 0, True),
        (299, 300, 0, 0, False),
        (240, 100, 40, 0, True),  # and verdicts
        (239, 100, 40, 0, False),
        (0, 0, 0, 0, False),
    ],
)
def test_is_enough__money__pays_what_waits_and_a_task_and_another_epoch(
    free: int, newest: int, fees: int, waiting: int, expected: bool
):
    money = PoolMoney(free_escrow=free, newest_reward=newest, newest_fees=fees, price=2_000_000)
    assert is_enough(money, waiting_units=waiting, task_units=100) is expected


class Pool:
    """A pool on a chain whose money the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.escrow, self.owed, self.rewards = 1000, 0, list[int]()
        self.is_indexed, self.verdicts = True, 0
        ledger = SimpleNamespace(
            epochs_of=lambda _: len(self.rewards), escrow_of=lambda _: self.escrow, owed_of=lambda _: self.owed
        )
        pools = SimpleNamespace(get_prices=lambda _: (ScheduledPrice(reward_per_million=2_000_000, start=0),))
        contracts = SimpleNamespace(ledger=ledger, pools=pools)
        params = SimpleNamespace(max_task_units=100)
        terms = make_terms(verdict_fee=10, epoch_verdicts=100)
        network = SimpleNamespace(contracts=contracts, pool=1, chain=None, params=params, terms=terms)
        self.ctx = SimpleNamespace(network=network, funds=PoolFunds())
        monkeypatch.setattr(pool_funds, "History", lambda **_: SimpleNamespace(find_epoch=self.find_epoch))

    def find_epoch(self, _: int, epoch: int) -> SimpleNamespace | None:
        record, header = SimpleNamespace(reward=self.rewards[epoch]), SimpleNamespace(verdicts=self.verdicts)
        return SimpleNamespace(record=record, header=header) if self.is_indexed else None

    def look(self) -> CycleResult:
        return asyncio.run(watch_funds(self.ctx))


def test_watch_funds__escrow_is_promised_and_filled_again__follows(monkeypatch: pytest.MonkeyPatch):
    pool = Pool(monkeypatch)
    funds = pool.ctx.funds
    assert (pool.look(), funds.is_enough) == (CycleResult.IDLE, True)
    funds.waiting_units = 401  # 802, and 200 for a task
    assert (pool.look(), funds.is_enough) == (CycleResult.IDLE, False)
    pool.rewards, pool.owed = [400], 400
    assert (pool.look(), funds.is_enough, funds.waiting_units) == (CycleResult.IDLE, True, 0)
    pool.rewards, pool.owed = [400, 300], 700
    assert (pool.look(), funds.is_enough) == (CycleResult.IDLE, True)
    pool.owed = 701
    assert (pool.look(), funds.is_enough) == (CycleResult.IDLE, False)
    pool.escrow = 2000
    assert (pool.look(), funds.is_enough) == (CycleResult.IDLE, True)
    pool.rewards, pool.verdicts, pool.owed = [400, 300, 310], 11, 1690  # 310 left, as the newest epoch
    assert (pool.look(), funds.is_enough) == (CycleResult.IDLE, True)
    funds.waiting_units = 1  # 2, and 200 for a task, and 110 for verdicts
    assert (pool.look(), funds.is_enough) == (CycleResult.IDLE, False)


def test_watch_funds__node_does_not_show_the_event_yet__is_asked_again(monkeypatch: pytest.MonkeyPatch):
    pool = Pool(monkeypatch)
    pool.rewards, pool.is_indexed = [5], False
    assert (pool.look(), pool.ctx.funds.epochs) == (CycleResult.RETRY, -1)
