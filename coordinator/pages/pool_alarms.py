"""What needs an operator, with what to do about it. All texts are those of this module, and none is a peer's."""

from collections.abc import Iterator
from typing import NamedTuple

from coordinator.db.page_queries import NodeCounts
from coordinator.db.repository import Repository
from coordinator.domain import pausing
from coordinator.pages.context import PagesContext

LATE_SECONDS = 600.0
"""Age from which a submission without a verdict is an alarm, if its receipt allows longer."""
SHORT_DAYS = 3.0
"""Days of pay in the escrow below which there is an alarm."""


class PoolAlarm(NamedTuple):
    """Example: PoolAlarm("escrow_short", "The escrow lasts 1.5 days.", "Add tokens with covey pool fund AMOUNT.")."""

    code: str
    text: str
    advice: str


def list_alarms(
    ctx: PagesContext, rows: Repository, *, nodes: NodeCounts, oldest_s: float | None, days_left: float | None
) -> tuple[PoolAlarm, ...]:
    """Return the alarms, most urgent first.

    `oldest_s` is the age of the oldest undecided submission in seconds, and `days_left` that of `MoneyView`.
    """
    if rows.get_fact("ended"):
        return ()
    return (*_list_pool(rows), *_list_judging(ctx, oldest_s), *_list_money(ctx, rows, days_left), *_list_work(nodes))


def _list_pool(rows: Repository) -> Iterator[PoolAlarm]:
    pause = pausing.find_pause(rows)
    if pause is not None:
        yield PoolAlarm("paused", f"No task is assigned: {pause.reason}.", "Resume it with covey pool resume.")
    for sign in pausing.list_signs(rows):
        yield PoolAlarm(sign.value, f"The run may not learn: {sign.sentence}.", f"{sign.advice}.")


def _list_judging(ctx: PagesContext, oldest_s: float | None) -> Iterator[PoolAlarm]:
    active, quorum = len(ctx.chain.active), ctx.params.quorum
    if ctx.chain.head is None:
        yield PoolAlarm("chain_silent", "The chain's node has not answered yet.", "Check the setting rpc_url.")
    elif active < quorum:
        text = f"Only {active} validators have their bond and their seat, and a verdict takes {quorum}."
        yield PoolAlarm("too_few_validators", text, "Have each validator bond its stake with covey stake add.")
    if oldest_s is not None and oldest_s > min(LATE_SECONDS, ctx.params.receipt_seconds):
        text = f"A submission has waited {oldest_s:.0f} s for its verdict."
        yield PoolAlarm("judging_late", text, "Look at the log of the validators, and at covey coordinator jobs.")


def _list_money(ctx: PagesContext, rows: Repository, days_left: float | None) -> Iterator[PoolAlarm]:
    money = ctx.chain.money
    if money is not None and not money.free:
        yield PoolAlarm("escrow_empty", "The escrow can pay for no more work.", "Add tokens with covey pool fund.")
    elif days_left is not None and days_left < SHORT_DAYS:
        yield PoolAlarm("escrow_short", f"The escrow lasts {days_left:.1f} days.", "Add tokens with covey pool fund.")
    late = [row for row in rows.list_unposted() if row.data_hash and ctx.clock() - row.closed_at > LATE_SECONDS]
    if late:
        text = f"Epoch {late[0].number} is closed and not on chain."
        yield PoolAlarm(
            "epoch_unposted", text, "Look for why the chain refuses it in the log of covey coordinator jobs."
        )


def _list_work(nodes: NodeCounts) -> Iterator[PoolAlarm]:
    if not nodes.busy + nodes.waiting:
        yield PoolAlarm("no_nodes", "No node is at work.", "Start one with covey join, or look at its log.")
