"""What needs an operator, each with its value, its limit and what to do. No text is a peer's.

Pages, `/v1/overview` and `covey status` show these sentences, and no other place has texts of alarms.
"""

from collections.abc import Iterator

from coordinator.db.page_queries import NodeCounts
from coordinator.db.repository import Repository
from coordinator.domain import pausing, sum_limits
from coordinator.pages.chain_facts import LOOK_SECONDS
from coordinator.pages.context import PagesContext
from coordinator.pages.templates_engine import show_amount
from covey.protocol.api.overview import AlarmView
from covey.protocol.api.trainer import StepPoint
from covey.protocol.learning_signs import LearningSign

LATE_SECONDS = 600.0
"""Age from which a submission without a verdict is an alarm, if its receipt allows longer."""
SHORT_DAYS = 3.0
"""Days of pay in the escrow below which there is an alarm."""


def list_alarms(
    ctx: PagesContext,
    rows: Repository,
    *,
    nodes: NodeCounts,
    oldest_s: float | None,
    days_left: float | None,
    newest: StepPoint | None = None,
) -> tuple[AlarmView, ...]:
    """Return the alarms, most urgent first.

    `oldest_s` is the age of the oldest undecided submission in seconds, `days_left` that of `MoneyView`, and `newest`
    the trainer's newest metrics.
    """
    if rows.get_fact("ended"):
        return ()
    return (
        *_list_pool(ctx, rows, newest),
        *_list_judging(ctx, rows, oldest_s),
        *_list_money(ctx, rows, days_left),
        *_list_work(nodes),
    )


def _list_pool(ctx: PagesContext, rows: Repository, newest: StepPoint | None) -> Iterator[AlarmView]:
    pause = pausing.find_pause(rows)
    if pause is not None:
        text = f"No task has been assigned for {max(0.0, ctx.clock() - pause.since):.0f} s: {pause.reason}."
        yield AlarmView(code="paused", text=text, advice="Resume it with covey pool resume.")
    for sign in pausing.list_signs(rows):
        text = f"The run may not learn: {sign.sentence}{_measure(sign, newest)}."
        yield AlarmView(code=sign.value, text=text, advice=f"{sign.advice}.")


def _measure(sign: LearningSign, newest: StepPoint | None) -> str:
    """Return the value of a sign in the newest step and its limit, as a part of a sentence."""
    value = None
    if newest is not None and sign is LearningSign.TRUNCATED:
        value = f"{newest.truncated_share:.0%} in the newest step"
    elif newest is not None and sign is LearningSign.CONSTANT_REWARD:
        value = f"the deviation is {newest.reward_std:.3g} in the newest step"
    elif newest is not None and sign is LearningSign.NO_LIVE_GROUP:
        value = f"{newest.live_share:.0%} of rollouts in the newest step have an advantage"
    limit = f"the limit is {LIMITS.get(sign, '0')}"
    return f" ({limit})" if value is None else f" ({value}, and {limit})"


LIMITS = {
    LearningSign.TRUNCATED: "the trainer's setting alarms.truncated_most",
    LearningSign.NO_ANSWER: "the trainer's setting alarms.unanswered_most",
}
"""Limits of the signs that are not present at 0."""


def _list_judging(ctx: PagesContext, rows: Repository, oldest_s: float | None) -> Iterator[AlarmView]:
    active, quorum = len(ctx.chain.active), ctx.params.quorum
    if ctx.chain.head is None:
        text = f"The chain's node has not answered yet, and is asked every {LOOK_SECONDS:.0f} s."
        yield AlarmView(code="chain_silent", text=text, advice="Check the setting rpc_url.")
    elif active < quorum:
        text = f"{active} validators have their bond and their seat, and a verdict takes {quorum}."
        advice = "Have each validator bond its stake with covey stake add."
        yield AlarmView(code="too_few_validators", text=text, advice=advice)
    limit_s = min(LATE_SECONDS, ctx.params.receipt_seconds)
    if oldest_s is not None and oldest_s > limit_s:
        text = f"A submission has waited {oldest_s:.0f} s for its verdict, and {limit_s:.0f} s are the limit."
        advice = "Look at the log of the validators, and at covey coordinator jobs."
        yield AlarmView(code="judging_late", text=text, advice=advice)
    highest = sum_limits.find_highest_sum(rows, ctx.params, ctx.chain.validators)
    if highest is not None:
        node, sums = highest
        text = f"The sum {sums.statistic} of node {node} is {sums.total:.4g} over {sums.items} items, and "
        text += f"{sums.limit:.4g} is the limit, so the calibration may no longer fit."
        advice = "Measure the thresholds again with covey validator calibrate."
        yield AlarmView(code=sum_limits.UNFIT, text=text, advice=advice)


def _list_money(ctx: PagesContext, rows: Repository, days_left: float | None) -> Iterator[AlarmView]:
    money, advice = ctx.chain.money, "Add tokens with covey pool fund."
    if money is not None and not money.free:
        text = f"The escrow can pay for no more work: all of its {show_amount(money.escrow, ctx.unit)} is promised."
        yield AlarmView(code="escrow_empty", text=text, advice=advice)
    elif days_left is not None and days_left < SHORT_DAYS:
        text = f"The escrow lasts {days_left:.1f} days, and {SHORT_DAYS:.0f} days are the limit."
        yield AlarmView(code="escrow_short", text=text, advice=advice)
    late = [row for row in rows.list_unposted() if row.data_hash and ctx.clock() - row.closed_at > LATE_SECONDS]
    if late:
        age_s = ctx.clock() - late[0].closed_at
        text = f"Epoch {late[0].number} was closed {age_s:.0f} s ago and is not on chain, and {LATE_SECONDS:.0f} s "
        text += "are the limit."
        advice = "Look for why the chain refuses it in the log of covey coordinator jobs."
        yield AlarmView(code="epoch_unposted", text=text, advice=advice)


def _list_work(nodes: NodeCounts) -> Iterator[AlarmView]:
    if not nodes.busy + nodes.waiting:
        others = ", ".join(f"{count} {state}" for state, count in nodes._asdict().items() if count)
        text = f"No node is at work: {others}." if others else "No node is at work, and none has registered."
        yield AlarmView(code="no_nodes", text=text, advice="Start one with covey join, or look at its log.")
