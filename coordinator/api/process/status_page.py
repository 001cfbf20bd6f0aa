"""The content of `/v1/status`: an overview of the whole pool."""

from collections.abc import Iterator, Sequence

from coordinator.context import Context
from coordinator.db.models import EpochRow, StepRow, SubmissionRow, TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import canary_scores, epoch_closing, exact_lane, pausing, scheduling
from coordinator.domain.scheduling import Groups
from coordinator.domain.steps import get_oldest_version
from covey.protocol.api.public import EpochView, NodeView, PauseView, StatusView, StepView
from covey.protocol.ids import Address, Hash, Step
from covey.protocol.status import StepState
from covey.protocol.verdict import Reason


def render_status(ctx: Context, repository: Repository) -> bytes:
    """Return the page as JSON, with 0 in place of the time, which `stamp_status` writes for each response."""
    page: bytes = build_status(ctx, repository).model_copy(update={"time": 0}).model_dump_json().encode()
    return page


def stamp_status(page: bytes, now: float) -> bytes:
    """Write the current time into a page. A cached page may be older, and clients compare their clocks with it."""
    return page.replace(b'"time":0', b'"time":%d' % int(now), 1)


def build_status(ctx: Context, repository: Repository) -> StatusView:
    """Return the content of `/v1/status`."""
    steps, latest = repository.list_steps(), repository.get_latest_step()
    blocks, epochs = repository.list_blocks(), repository.list_epochs()
    pause = pausing.find_pause(repository)
    return StatusView(
        pool=ctx.ledger.pool,
        time=int(ctx.clock()),
        block=blocks[-1][0] if blocks else 0,
        ended=bool(repository.get_fact("ended")),
        settled=_is_settled(repository),
        step=latest.number if latest else -1,
        steps=tuple(_describe_steps(ctx, repository, steps)),
        tasks=repository.count_by_state(TaskRow),
        submissions=repository.count_by_state(SubmissionRow),
        reasons={Reason(reason).name.lower(): n for reason, n in repository.count_by_reason().items()},
        nodes={
            Address(each.address): NodeView(
                contributor=Address(each.contributor), suspended=each.barred, accepted=each.accepted
            )
            for each in repository.list_standings()
        },
        validators=dict(
            canary_scores.count_scores(repository, bonds=ctx.chain.bonds, active=ctx.chain.active_validators)
        ),
        execution_contracts=exact_lane.count_validators(repository, ctx.params, now=ctx.clock()),
        epochs=tuple(_describe_epoch(epoch) for epoch in epochs if not epoch_closing.is_closing(epoch)),
        signs=pausing.list_signs(repository),
        pause=None if pause is None else PauseView(since=pause.since, reason=pause.reason),
    )


def _describe_steps(ctx: Context, repository: Repository, steps: Sequence[StepRow]) -> Iterator[StepView]:
    for row in steps:
        groups = Groups(row.packed_groups, row.packed_live_groups)
        is_open = row.state is StepState.OPEN
        if is_open:
            oldest = get_oldest_version(repository, ctx.params)
            groups = Groups(*repository.sum_unpacked(oldest_version=oldest))
        yield StepView(
            step=Step(row.number),
            state=row.state,
            record_hash=Hash(row.record_hash) if row.record_hash else None,
            groups_accepted=row.accepted_groups,
            groups_sampled=groups.sampled,
            groups_live=groups.live,
            is_capped=not is_open and scheduling.is_capped(ctx.params, groups),
        )


def _describe_epoch(row: EpochRow) -> EpochView:
    return EpochView(
        epoch=row.number,
        work_root=Hash(row.work_root),
        reward_root=Hash(row.reward_root),
        leaf_count=row.leaf_count,
        units=row.units,
        data_hash=Hash(row.data_hash),
        previous_hash=Hash(row.previous_hash),
        posted=row.posted_block is not None,
        disabled=row.disabled,
        header_hash=None if row.header_hash is None else Hash(row.header_hash),
        final_at=row.final_at,
        reward=None if row.reward is None else int(row.reward),
        cumulative=None if row.cumulative is None else int(row.cumulative),
    )


def _is_settled(repository: Repository) -> bool:
    if not repository.get_fact("ended") or repository.has_undecided() or repository.list_unposted():
        return False
    return not repository.sum_unsettled().submissions and not repository.list_unmarked()
