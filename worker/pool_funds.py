"""Whether a pool can still pay for the worker's next task. The worker reads the money from the chain.

A worker with several pools leaves one that cannot, and a worker with one pool goes on: the operator may fund it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from covey.chain.history import History
from covey.protocol.prices import compute_reward, find_highest_price
from covey.runtime.cycle import CycleResult
from covey.runtime.log import get_logger
from worker.context import Context

FUNDS_SECONDS = 15.0
"""Seconds between two looks at a pool's money."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMoney:
    """Money of a pool, in the smallest unit of its token."""

    free_escrow: int
    """Part of the escrow that no posted epoch has promised."""
    newest_reward: int
    """Reward of the newest posted epoch. 0 if there is none."""
    newest_fees: int
    """Part of `newest_reward` that pays for verdicts."""
    price: int
    """Highest reward for 1,000,000 units that the next work may get."""


def is_enough(money: PoolMoney, *, waiting_units: int, task_units: int) -> bool:
    """Return whether the free escrow pays for another task.

    `waiting_units` are the worker's countersigned units since the newest posted epoch. They are paid before the task.
    The next epoch is expected to pay as much for verdicts as the newest one.
    An escrow that cannot pay another epoch as large as the newest one is not enough, because an epoch is paid whole
    or not at all.
    """
    needed = compute_reward(waiting_units + task_units, money.price) + money.newest_fees
    return money.free_escrow >= max(needed, money.newest_reward)


async def watch_funds(ctx: Context) -> CycleResult:
    """Compare the pool's money with what the worker waits for, and log each change of the result."""
    funds, network = ctx.funds, ctx.network
    contracts, pool = network.contracts, network.pool
    history = History(client=network.chain, contracts=contracts)
    epochs = await asyncio.to_thread(contracts.ledger.epochs_of, pool)
    if epochs != funds.epochs:
        posted = await asyncio.to_thread(history.find_epoch, pool, epochs - 1) if epochs else None
        if epochs and posted is None:
            return CycleResult.RETRY
        funds.newest_reward = 0 if posted is None else posted.record.reward
        fees = network.terms.verdict_fees
        funds.newest_fees = 0 if posted is None else fees.compute_total(posted.header.verdicts)
        funds.epochs, funds.waiting_units = epochs, 0
    read: list[Callable[[], int]] = [
        lambda: contracts.ledger.escrow_of(pool) - contracts.ledger.owed_of(pool),
        lambda: find_highest_price(contracts.pools.get_prices(pool)),
    ]
    free, price = [await asyncio.to_thread(each) for each in read]
    money = PoolMoney(free_escrow=free, newest_reward=funds.newest_reward, newest_fees=funds.newest_fees, price=price)
    found = is_enough(money, waiting_units=funds.waiting_units, task_units=network.params.max_task_units)
    if found != funds.is_enough:
        funds.is_enough = found
        say = "the pool can pay again" if found else "the pool cannot pay for another task"
        get_logger().warning(say, pool=pool, free_escrow=free, price=price, waiting_units=funds.waiting_units)
    return CycleResult.IDLE
