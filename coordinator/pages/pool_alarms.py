"""What needs an operator, each with its value, its limit and what to do. No text is a peer's.

Pages, `/v1/overview` and `covey status` show these sentences, and no other place has texts of alarms.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from coordinator.db.page_queries import NodeCounts
from coordinator.db.repository import Repository
from coordinator.domain import attesting, pausing, sum_limits
from coordinator.pages.chain_facts import LOOK_SECONDS
from coordinator.pages.context import PagesContext
from coordinator.pages.templates_engine import show_amount
from covey.protocol.api.overview import AlarmView
from covey.protocol.api.trainer import StepPoint
from covey.protocol.ids import PoolId
from covey.protocol.learning_signs import LearningSign

LATE_SECONDS = 600.0
"""Age from which a submission without a verdict is an alarm, if its receipt allows longer."""
SHORT_DAYS = 3.0
"""Days of pay in the escrow below which there is an alarm."""


class AlarmKind(NamedTuple):
    """An alarm without its values."""

    meaning: str
    """Sentence that says what is wrong."""
    advice: str
    """Imperative sentence that says what to do."""


_FUND = "Add tokens with covey pool fund."
ALARMS: Mapping[str, AlarmKind] = {
    "paused": AlarmKind("The pool is paused, so no task is assigned.", "Resume it with covey pool resume."),
    **{sign.value: AlarmKind(f"The run may not learn: {sign.sentence}.", f"{sign.advice}.") for sign in LearningSign},
    "chain_silent": AlarmKind("The chain's node has not answered the pages yet.", "Check the setting rpc_url."),
    "too_few_validators": AlarmKind(
        "Fewer bonded validators are active than a verdict requires.",
        "Have each validator bond its stake with covey stake add.",
    ),
    "judging_late": AlarmKind(
        "A submission has waited too long for its verdict.",
        "Look at the log of the validators, and at covey coordinator jobs.",
    ),
    sum_limits.UNFIT: AlarmKind(
        "The running sums of the whole pool are high, so the calibration may no longer fit.",
        "Measure the thresholds again with covey validator calibrate.",
    ),
    "escrow_empty": AlarmKind("The escrow can pay for no more work.", _FUND),
    "escrow_short": AlarmKind(f"The escrow lasts less than {SHORT_DAYS:.0f} days.", _FUND),
    "epoch_unsigned": AlarmKind(
        f"Too few validators have signed an epoch that was closed over {attesting.LATE_SECONDS:.0f} s ago.",
        attesting.ADVICE,
    ),
    "epoch_unposted": AlarmKind(
        f"An epoch was closed over {LATE_SECONDS:.0f} s ago and is not on chain.",
        "Look for why the chain refuses it in the log of covey coordinator jobs.",
    ),
    "no_nodes": AlarmKind("No node is at work.", "Start one with covey join, or look at its log."),
}
"""All alarms by their code, most urgent first."""


def list_alarms(
    ctx: PagesContext,
    rows: Repository,
    *,
    nodes: NodeCounts,
    oldest_s: float | None,
    days_left: float | None,
    newest: StepPoint | None = None,
) -> tuple[AlarmView, ...]:
    """Return the alarms, most urgent first. A pool that has ended has only those of its epochs.

    `oldest_s` is the age of the oldest undecided submission in seconds, `days_left` that of `MoneyView`, and `newest`
    the trainer's newest metrics.
    """
    if rows.get_fact("ended"):
        return tuple(_list_epochs(ctx, rows))
    return (
        *_list_pool(ctx, rows, newest),
        *_list_judging(ctx, rows, oldest_s),
        *_list_money(ctx, days_left),
        *_list_epochs(ctx, rows),
        *_list_work(nodes),
    )


def _list_pool(ctx: PagesContext, rows: Repository, newest: StepPoint | None) -> Iterator[AlarmView]:
    pause = pausing.find_pause(rows)
    if pause is not None:
        text = f"No task has been assigned for {max(0.0, ctx.clock() - pause.since):.0f} s: {pause.reason}."
        yield _build("paused", text)
    for sign in pausing.list_signs(rows):
        yield _build(sign.value, f"The run may not learn: {sign.sentence}{_measure(sign, newest)}.")


def _build(code: str, text: str) -> AlarmView:
    """Return an alarm with its values in `text`."""
    return AlarmView(code=code, text=text, advice=ALARMS[code].advice)


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
        yield _build("chain_silent", text)
    elif active < quorum:
        text = f"{active} validators have their bond and their seat, and a verdict takes {quorum}."
        yield _build("too_few_validators", text)
    limit_s = min(LATE_SECONDS, ctx.params.receipt_seconds)
    if oldest_s is not None and oldest_s > limit_s:
        text = f"A submission has waited {oldest_s:.0f} s for its verdict, and {limit_s:.0f} s are the limit."
        yield _build("judging_late", text)
    highest = sum_limits.find_highest_sum(rows, ctx.params, ctx.chain.validators)
    if highest is not None:
        node, sums = highest
        text = f"The sum {sums.statistic} of node {node} is {sums.total:.4g} over {sums.items} items, and "
        text += f"{sums.limit:.4g} is the limit, so the calibration may no longer fit."
        yield _build(sum_limits.UNFIT, text)


def _list_money(ctx: PagesContext, days_left: float | None) -> Iterator[AlarmView]:
    money = ctx.chain.money
    if money is not None and not money.free:
        text = f"The escrow can pay for no more work: all of its {show_amount(money.escrow, ctx.unit)} is promised."
        yield _build("escrow_empty", text)
    elif days_left is not None and days_left < SHORT_DAYS:
        text = f"The escrow lasts {days_left:.1f} days, and {SHORT_DAYS:.0f} days are the limit."
        yield _build("escrow_short", text)


def _list_epochs(ctx: PagesContext, rows: Repository) -> Iterator[AlarmView]:
    """Yield an alarm of the oldest epoch that is not on chain. No epoch of a closed pool is posted any more."""
    oldest = next(iter(rows.list_unposted()), None)
    if oldest is None or not oldest.data_hash or rows.get_fact("closed"):
        return
    age_s, required = ctx.clock() - oldest.closed_at, ctx.terms.header_quorum
    signers = attesting.find_signers(rows, PoolId(ctx.config.pool), oldest, ctx.chain.active)
    if age_s > attesting.LATE_SECONDS and len(signers.signed) < required:
        text = (
            f"Epoch {oldest.number} was closed {age_s:.0f} s ago, and {len(signers.signed)} of {required} validators "
        )
        text += f"have signed it. Those with a bond that have not: {', '.join(signers.missing) or 'none'}."
        yield _build("epoch_unsigned", text)
    elif age_s > LATE_SECONDS:
        text = f"Epoch {oldest.number} was closed {age_s:.0f} s ago and is not on chain, and {LATE_SECONDS:.0f} s "
        text += "are the limit."
        yield _build("epoch_unposted", text)


def _list_work(nodes: NodeCounts) -> Iterator[AlarmView]:
    if not nodes.busy + nodes.waiting:
        others = ", ".join(f"{count} {state}" for state, count in nodes._asdict().items() if count)
        text = f"No node is at work: {others}." if others else "No node is at work, and none has registered."
        yield _build("no_nodes", text)
