"""Builds what pages and their JSON show of the pool as a whole and of its lists, from rows of columns."""

import math
from collections.abc import Iterable

from coordinator.db.models import SubmissionRow
from coordinator.db.page_queries import MAX_ROWS, EpochItem, NodeItem
from coordinator.db.rate_queries import StepPointRow
from coordinator.db.repository import Repository
from coordinator.domain import idleness, nodes, pausing
from coordinator.pages import pool_alarms
from coordinator.pages.context import PagesContext
from covey.errors import ProtocolError
from covey.protocol.api.overview import HourView, MoneyView, NodeCountsView, OverviewView, ReadinessSpread
from covey.protocol.api.pages import (
    CurvePointView,
    CurveView,
    EpochItemView,
    EpochListView,
    JudgeListView,
    JudgeView,
    MinuteView,
    NodeItemView,
    NodeListView,
    PolicyItemView,
    PolicyListView,
    PolicyWayView,
    RatesView,
)
from covey.protocol.api.trainer import StepPoint, TaskTypePoint
from covey.protocol.ids import Address, Hash
from covey.protocol.prices import compute_reward
from covey.protocol.verdict import Reason

DAY_SECONDS, HOUR_SECONDS = 86_400, 3600
MAX_TYPES = 8
"""Maximum number of types of tasks in the overview."""
CURVE_POINTS = 200
"""Maximum number of points of a curve. A longer course is thinned out evenly."""


def build_overview(ctx: PagesContext, rows: Repository) -> OverviewView:
    """Return the pool at a glance."""
    now = ctx.clock()
    counts = rows.count_nodes(now=now, dead_s=nodes.INSTANCE_SECONDS, unhealthy_s=idleness.UNHEALTHY_SECONDS)
    oldest = rows.find_oldest()["undecided_submission"]
    oldest_s = None if oldest is None else max(0.0, now - oldest)
    money, pause, latest = _build_money(ctx, rows, now), pausing.find_pause(rows), rows.get_latest_step()
    blocks, points = rows.list_blocks(), rows.list_points(limit=1)
    newest = StepPoint(**{name: getattr(points[0], name) for name in StepPoint.model_fields}) if points else None
    return OverviewView(
        pool=ctx.config.pool,
        name=ctx.params.name,
        time=int(now),
        block=blocks[-1][0] if blocks else 0,
        step=-1 if latest is None else latest.number,
        ended=bool(rows.get_fact("ended")),
        paused_since=None if pause is None else pause.since,
        nodes=NodeCountsView(**counts._asdict()),
        tasks=dict(rows.count_open_tasks()),
        submissions=rows.count_by_state(SubmissionRow),
        reasons={name_reason(reason): count for reason, count in rows.count_by_reason().items()},
        cases=dict(rows.count_cases()),
        oldest_undecided_seconds=oldest_s,
        hour=_build_hour(rows, now),
        money=money,
        newest=newest,
        task_types=_list_task_types(points[0]) if points else (),
        readiness=_measure_readiness(rows, now),
        alarms=pool_alarms.list_alarms(
            ctx, rows, nodes=counts, oldest_s=oldest_s, days_left=money.days_left, newest=newest
        ),
    )


def _list_task_types(point: StepPointRow) -> tuple[TaskTypePoint, ...]:
    types = [TaskTypePoint(**fields) for fields in point.task_types or ()]
    return tuple(sorted(types, key=lambda each: (-each.share, each.name))[:MAX_TYPES])


def _measure_readiness(rows: Repository, now: float) -> ReadinessSpread | None:
    seconds = rows.list_policy_seconds(since=now - nodes.INSTANCE_SECONDS)
    if not seconds:
        return None
    p50, p95 = (seconds[math.ceil(part * len(seconds)) - 1] for part in (0.5, 0.95))  # nearest ranks
    return ReadinessSpread(nodes=len(seconds), p50_seconds=p50, p95_seconds=p95)


def _build_hour(rows: Repository, now: float) -> HourView:
    minutes = rows.list_minutes(since=int(now) - HOUR_SECONDS)
    return HourView(**{name: sum(getattr(row, name) for row in minutes) for name in HourView.model_fields})


def _build_money(ctx: PagesContext, rows: Repository, now: float) -> MoneyView:
    prices, money = ctx.read_prices(rows), ctx.chain.money
    price, newest = prices.present, prices.prices[-1]
    is_to_change = newest.start > prices.now
    spent = compute_reward(rows.sum_minute_units(since=int(now) - DAY_SECONDS), price)
    spent += ctx.terms.verdict_fees.compute_total(rows.sum_verdicts(since=now - DAY_SECONDS))
    unit = ctx.stake_rule.unit
    return MoneyView(
        decimals=unit.decimals,
        symbol=unit.symbol,
        price=price,
        next_price=newest.reward_per_million if is_to_change else None,
        next_price_at=newest.start if is_to_change else None,
        escrow=None if money is None else money.escrow,
        promised=None if money is None else money.promised,
        spent_per_day=spent,
        days_left=money.free / spent if money is not None and spent else None,
    )


def build_rates(rows: Repository, *, now: float, minutes: int) -> RatesView:
    """Return what was done in each of the last minutes."""
    found = rows.list_minutes(since=int(now) - 60 * minutes)
    return RatesView(
        items=tuple(MinuteView(**{name: getattr(row, name) for name in MinuteView.model_fields}) for row in found)
    )


def build_curve(rows: Repository) -> CurveView:
    """Return the metrics of all steps that the trainer reported, thinned out to CURVE_POINTS of them."""
    found = rows.list_points_evenly(CURVE_POINTS)
    return CurveView(
        items=tuple(
            CurvePointView(**{name: getattr(row, name) for name in CurvePointView.model_fields}) for row in found
        )
    )


def build_nodes(rows: Repository, *, now: float, after: str = "", limit: int = MAX_ROWS) -> NodeListView:
    """Return nodes by address, from the one after `after` on."""
    found = rows.list_node_items(after=after, limit=limit)
    last = found[-1].address if len(found) == min(limit, MAX_ROWS) else None
    return NodeListView(items=tuple(describe_node(item, now) for item in found), after=last)


def describe_node(item: NodeItem, now: float) -> NodeItemView:
    """Describe a node in a list at a time in Unix seconds."""
    silence = max(0.0, now - item.seen_at)
    state = "busy"
    if item.removed or item.suspended:
        state = "removed" if item.removed else "suspended"
    elif silence >= idleness.UNHEALTHY_SECONDS:
        state = "dead" if silence >= nodes.INSTANCE_SECONDS else "unhealthy"
    elif item.waiting_until >= now:
        state = "waiting"
    return NodeItemView(
        node=Address(item.address),
        contributor=Address(item.contributor),
        state=state,
        suspended=item.suspended,
        accepted=item.accepted,
        dropped=item.dropped,
        cached_version=item.cached_version,
        silent_seconds=silence if item.seen_at else None,
    )


def build_epochs(
    ctx: PagesContext, rows: Repository, *, before: int | None = None, limit: int = MAX_ROWS
) -> EpochListView:
    """Return the newest epochs first, from the one before `before` on."""
    found = rows.list_epoch_items(before=before, limit=limit)
    last = found[-1].number if len(found) == min(limit, MAX_ROWS) and found[-1].number else None
    return EpochListView(items=tuple(describe_epochs(ctx, rows, found)), before=last)


def get_epoch(ctx: PagesContext, rows: Repository, number: int) -> EpochItemView:
    """Return one epoch. Raises ProtocolError("unknown_epoch") if it is not closed."""
    found = rows.list_epoch_items(before=number + 1, limit=1)
    if not found or found[0].number != number:
        raise ProtocolError("unknown_epoch", f"epoch {number} is not closed", status=404)
    return next(iter(describe_epochs(ctx, rows, found)))


def describe_epochs(ctx: PagesContext, rows: Repository, found: Iterable[EpochItem]) -> Iterable[EpochItemView]:
    """Describe epochs, with the transactions that posted them."""
    items = list(found)
    transactions = rows.find_transactions(ctx.config.pool, [item.number for item in items])
    for item in items:
        yield EpochItemView(
            epoch=item.number,
            state=name_epoch_state(ctx, item),
            work_root=Hash(item.work_root),
            reward_root=Hash(item.reward_root),
            data_hash=Hash(item.data_hash),
            previous_hash=Hash(item.previous_hash),
            header_hash=None if item.header_hash is None else Hash(item.header_hash),
            leaf_count=item.leaf_count,
            units=item.units,
            closed_at=item.closed_at,
            posted_block=item.posted_block,
            final_at=item.final_at,
            disable_until=None if item.final_at is None else item.final_at - ctx.terms.veto_window,
            reward=None if item.reward is None else int(item.reward),
            cumulative=None if item.cumulative is None else int(item.cumulative),
            transaction=Hash(transactions[item.number]) if item.number in transactions else None,
        )


def name_epoch_state(ctx: PagesContext, item: EpochItem) -> str:
    """Return how far an epoch is: "closing", "closed", "posted", "final" or "disabled"."""
    if item.disabled or not item.data_hash:
        return "disabled" if item.disabled else "closing"
    if item.posted_block is None:
        return "closed"
    chain_time = ctx.clock() if ctx.chain.head is None else ctx.chain.head.timestamp
    return "final" if item.final_at is not None and item.final_at <= chain_time else "posted"


def build_policies(
    ctx: PagesContext, rows: Repository, *, before: int | None = None, limit: int = MAX_ROWS
) -> PolicyListView:
    """Return the newest policies first, from the one before `before` on."""
    found = rows.list_step_items(before=before, limit=limit)
    last = found[-1].number if len(found) == min(limit, MAX_ROWS) and found[-1].number else None
    items = tuple(
        PolicyItemView(
            step=item.number,
            state=item.state,
            record_hash=Hash(item.record_hash) if item.record_hash else None,
            block=item.block_number,
            accepted_groups=item.accepted_groups,
            batch_groups=item.packed_groups,
            batch_live_groups=item.packed_live_groups,
            ways=tuple(
                PolicyWayView(kind="delta" if way.is_delta else "full", size=way.size, sources=way.sources)
                for way in ctx.sources.find(item.record_hash)
            ),
        )
        for item in found
    )
    return PolicyListView(items=items, before=last)


def build_judges(ctx: PagesContext, rows: Repository, *, now: float) -> JudgeListView:
    """Return the validators that the chain names and those that were seen, by address."""
    seen = {item.address: item for item in rows.list_validator_items()}
    items = []
    for address in sorted({*seen, *ctx.chain.bonds})[:MAX_ROWS]:
        item = seen.get(address)
        items.append(
            JudgeView(
                validator=Address(address),
                bond=ctx.chain.bonds.get(Address(address)),
                is_active=address in ctx.chain.active,
                silent_seconds=max(0.0, now - item.seen_at) if item and item.seen_at else None,
                judged=item.judged if item else 0,
                lapsed=item.lapsed if item else 0,
                slow=item.slow if item else 0,
                contradicted=item.contradicted if item else 0,
            )
        )
    return JudgeListView(items=tuple(items))


def name_reason(reason: int) -> str:
    """Return the name of a reason, or "unknown" if this version does not know it."""
    return Reason(reason).name.lower() if reason in {each.value for each in Reason} else "unknown"
