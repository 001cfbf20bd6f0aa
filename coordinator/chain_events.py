"""Follows the chain, and sends the transactions of the outbox. No other process of the coordinator does either.

Events are applied in one transaction with the follower's cursor. After a reorganization, the effects of removed blocks
are undone.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from coordinator.chain_state import is_about_state, list_touched
from coordinator.context import Context
from coordinator.db.models import CaseRow
from coordinator.db.repository import Repository
from coordinator.domain import judging, nodes, omissions, panel, restoring, settlement, steps, tasks
from coordinator.domain.stakes import Stake, record_stake
from covey.chain import events
from covey.chain.follower import ChainProgress, SeenBlock
from covey.errors import ProtocolError, TransientError
from covey.protocol import canonical
from covey.protocol.ids import Address, Hash
from covey.protocol.object_keys import build_epoch_key
from covey.protocol.status import CASE_MOVES, CaseState, SubmissionState, require_move
from covey.runtime.cycle import CycleResult
from covey.runtime.log import get_logger

MAX_EPOCH_BYTES = 1 << 30
"""Maximum size of an epoch's file in bytes."""
UNSETTLED_SECONDS = 1.0
"""Minimum time in seconds between two reads of the validators while any validator is not active."""
LOOK_AGAIN_SECONDS = 20.0
"""Time in seconds after which an API process that does not follow the chain reads the validators again."""
MAX_LOOKED_UP = 200
"""Maximum number of contributors whose stake is read for the first time in one cycle."""


class LookedUpStake(NamedTuple):
    """The stake of a contributor, as read at a block."""

    contributor: Address
    stake: Stake
    block: int


ClosingEvent = events.CaseVetoed | events.CaseExecuted | events.CaseLapsed


async def cycle(ctx: Context) -> CycleResult:
    """Read new events from the chain, apply them, answer challenges, and send pending transactions.

    While neither the chain nor the database changes, only the newest block is read.
    """
    commits = ctx.database.changes.read()
    is_quiet = ctx.chain.is_quiet(commits)
    progress = await asyncio.to_thread(read_chain, ctx, is_quiet=is_quiet)
    if progress is None and is_quiet:
        return CycleResult.IDLE
    stakes = await asyncio.to_thread(look_up_state, ctx, progress)
    if progress is not None or stakes:
        files = await asyncio.to_thread(fetch_foreign_epochs, ctx, progress)
        await asyncio.to_thread(apply_progress, ctx, progress, stakes, files)
    await asyncio.to_thread(answer_challenges, ctx)
    pending = await asyncio.to_thread(ctx.sender.pump)
    ctx.chain.note_cycle(commits, pending=pending)
    return CycleResult.DONE if progress is not None and not progress.is_caught_up else CycleResult.IDLE


async def look_ahead(ctx: Context, *, max_age_s: float = LOOK_AGAIN_SECONDS) -> CycleResult:
    """Read the state of the chain that requests and jobs need, in a process that does not follow the chain.

    Validators are read again after `max_age_s` seconds, and after UNSETTLED_SECONDS while any of them is not active.
    """

    def look() -> None:
        ctx.chain.note_head(ctx.client.get_block("latest"))
        ctx.chain.note_poll()
        ctx.chain.refresh(max_age_s=max_age_s if ctx.chain.is_static else min(UNSETTLED_SECONDS, max_age_s))

    await asyncio.to_thread(look)
    return CycleResult.IDLE


def read_chain(ctx: Context, *, is_quiet: bool = False) -> ChainProgress | None:
    """Return the progress of the chain since the stored cursor, or None if there is none.

    If `is_quiet`, the database has not changed, so the cursor in memory is used.
    """
    cursor = ctx.chain.cursor if is_quiet else None
    if cursor is None:
        with ctx.database.read() as repository:
            cursor = tuple(SeenBlock(number=number, hash=Hash(digest)) for number, digest in repository.list_blocks())
        ctx.chain.cursor = cursor
    progress = ctx.follower.poll(cursor)
    ctx.chain.note_poll()
    return None if progress.cursor == cursor and progress.rolled_back_to is None else progress


def look_up_state(ctx: Context, progress: ChainProgress | None) -> list[LookedUpStake]:
    """Read the state that requests need and that the new events have changed, before their transaction begins."""
    found = () if progress is None else progress.events
    if progress is not None or not ctx.chain.has_head:
        ctx.chain.note_head(ctx.client.get_block("latest"))
    is_rolled_back = progress is not None and progress.rolled_back_to is not None
    is_changed = any(is_about_state(event, ctx.config.pool) for event in found)
    if is_changed or is_rolled_back:
        ctx.chain.refresh()
    elif not ctx.chain.is_static:
        ctx.chain.refresh(max_age_s=UNSETTLED_SECONDS)
    with ctx.database.read() as repository:

        def find_contributor(receipt_hash: Hash) -> Address | None:
            case = repository.get_case(receipt_hash)
            return None if case is None else Address(case.contributor)

        touched = list_touched(found, ctx.config.pool, find_contributor)
        rolled_back = None if progress is None else progress.rolled_back_to
        rows = repository.list_contributors(touched, after_block=rolled_back, unknown=MAX_LOOKED_UP)
    if not rows:
        return []
    block = ctx.client.block_number()
    if block < max(touched.values(), default=0):
        raise TransientError("chain_lags", f"the chain's node is at block {block}, before an event it reported")
    return [LookedUpStake(Address(row.address), ctx.chain.read_stake(Address(row.address)), block) for row in rows]


def fetch_foreign_epochs(ctx: Context, progress: ChainProgress | None) -> dict[int, bytes]:
    """Return the files of posted epochs that this database lacks, by number.

    Such epochs were posted after the backup from which the database was restored, or after an earlier epoch was
    disabled, which closes later ones again. Missing and damaged files are left out.
    """
    found = () if progress is None else progress.events
    disabled = min((event.epoch for event in found if isinstance(event, events.EpochDisabled)), default=math.inf)
    posted = [event for event in found if isinstance(event, events.EpochPosted) and event.pool == ctx.config.pool]
    if not posted:
        return {}
    with ctx.database.read() as repository:
        foreign = [
            event for event in posted if event.epoch > disabled or not settlement.is_known(repository, event.header)
        ]
    files: dict[int, bytes] = {}
    for event in foreign:
        key = build_epoch_key(ctx.config.pool, event.header.data_hash)
        with suppress(ProtocolError):  # `on_epoch_posted` logs it.
            data = ctx.store.get(key, max_bytes=MAX_EPOCH_BYTES)
            if canonical.sha256(data) == event.header.data_hash:
                files[event.epoch] = data
    return files


def apply_progress(
    ctx: Context,
    progress: ChainProgress | None,
    stakes: Sequence[LookedUpStake] = (),
    files: Mapping[int, bytes] = MappingProxyType({}),
) -> None:
    """Undo removed blocks, apply the pool's events and store the cursor in one transaction. Then trigger jobs.

    `files` is the result of `fetch_foreign_epochs`.
    """
    with ctx.database.write() as repository:
        for each in stakes:
            is_rolled_back = progress is not None and progress.rolled_back_to is not None
            record_stake(repository, each.contributor, each.stake, block=each.block, is_rolled_back=is_rolled_back)
        if progress is None:
            return
        if progress.rolled_back_to is not None:
            repository.forget_blocks_above(progress.rolled_back_to)
            judging.forget_draws_above(repository, progress.rolled_back_to)
        for event in progress.events:
            if isinstance(event, events.EpochPosted) and event.pool == ctx.config.pool and event.epoch in files:
                restoring.import_epoch(repository, event.header, files[event.epoch], now=ctx.clock())
                get_logger().warning("an epoch was restored from its file", epoch=event.epoch)
            handler = HANDLERS.get(type(event))
            if handler is not None and getattr(event, "pool", None) == ctx.config.pool:
                handler(ctx, repository, event)
        repository.replace_blocks([(block.number, block.hash) for block in progress.cursor])
        signed_until = progress.read_until - ctx.params.verification.draw_seconds
        is_drawn = repository.has_undrawn(signed_until=signed_until)
    if is_drawn:
        ctx.jobs.trigger("draw_submissions", block=progress.cursor[-1].number)
    if progress.events:
        ctx.jobs.trigger("assign_tasks")
        ctx.jobs.trigger("begin_epoch")
    for event in progress.events:
        if isinstance(event, events.EpochPosted) and event.pool == ctx.config.pool:
            ctx.jobs.trigger("mark_settled", epoch=event.epoch)
            ctx.jobs.trigger("post_epoch", epoch=event.epoch + 1)


def answer_challenges(ctx: Context) -> None:
    """Add intents for the answers to all open challenges whose epochs are on chain, and for deductions.

    Each answer has its own transaction, so a flood of challenges does not delay other writers.
    """
    with ctx.database.read() as repository:
        answers = omissions.build_answers(repository, ctx.contracts.ledger, ctx.ledger.pool, now=ctx.clock())
    for answer in answers:
        with ctx.database.write() as repository:
            omissions.record_answer(repository, answer)


def on_policy_published(ctx: Context, repository: Repository, event: events.PolicyPublished) -> None:
    steps.open_step(
        repository,
        ctx.params,
        number=event.step,
        record_hash=event.record_hash,
        block=event.block_number,
        now=ctx.clock(),
    )


def on_pool_ended(_: Context, repository: Repository, event: events.PoolEnded) -> None:
    repository.set_fact("ended", event.block_number)
    repository.set_fact("closes_at", event.closes_at)
    tasks.end_tasks(repository)


def on_node_removed(ctx: Context, repository: Repository, event: events.NodeRemoved) -> None:
    node = repository.get_node(event.node)
    if node is not None:
        nodes.remove(repository, ctx.params, node, ctx.clock())


def on_node_registered(_: Context, repository: Repository, event: events.NodeRegistered) -> None:
    """Restore a node whose removal was read after the worker had registered here again."""
    node = repository.get_node(event.node)
    if node is not None and node.contributor == event.contributor and node.removed:
        node.removed, node.registered_block = False, event.block_number


def on_epoch_posted(_: Context, repository: Repository, event: events.EpochPosted) -> None:
    if not settlement.record_posted(repository, event.header, event.record, block=event.block_number):
        get_logger().error("an epoch was posted that this coordinator did not close", epoch=event.epoch)


def on_epoch_disabled(_: Context, repository: Repository, event: events.EpochDisabled) -> None:
    settlement.record_disabled(repository, number=event.epoch)
    nodes.judge_released(repository)


def on_omission_challenged(_: Context, repository: Repository, event: events.OmissionChallenged) -> None:
    omissions.record_challenge(repository, event.receipt_hash, block=event.block_number)


def on_omission_decided(
    _: Context, repository: Repository, event: events.OmissionAnswered | events.OmissionUpheld
) -> None:
    paid = event.amount if isinstance(event, events.OmissionUpheld) else None
    omissions.record_decision(repository, event.receipt_hash, block=event.block_number, paid=paid)


def on_omission_netted(_: Context, repository: Repository, event: events.OmissionNetted) -> None:
    omissions.record_netted(repository, event.receipt_hash, block=event.block_number)


def on_case_opened(_: Context, repository: Repository, event: events.CaseOpened) -> None:
    case = repository.get_case(event.receipt_hash)
    if case is None:
        case = CaseRow(receipt_hash=event.receipt_hash, state=CaseState.LOCKED)
    if case.state is CaseState.LOCKED:  # The event may be delivered twice, or again after a reorganization.
        case.node, case.contributor = event.node, event.contributor
        case.block_number, case.transaction_hash = event.block_number, event.transaction_hash
        case.reason, case.amount, case.veto_until = event.reason, str(event.amount), event.veto_until
        case.opened_transaction = event.transaction_hash
        repository.add(case)
    rejected = repository.get_submission(event.receipt_hash)
    if rejected is not None and rejected.state is SubmissionState.REJECTED:
        panel.close_unrevealed(rejected)
    nodes.suspend_all(repository, event.contributor, nodes.CASE)


def on_case_closed(ctx: Context, repository: Repository, event: ClosingEvent) -> None:
    case = repository.get_case(event.receipt_hash)
    after = CASE_STATES[type(event)]
    if case is not None and case.state is not after:
        case.state = require_move(CASE_MOVES, case.state, after)
        case.block_number, case.transaction_hash = event.block_number, event.transaction_hash
    if case is not None and after is CaseState.VETOED:
        repository.flush()
        nodes.reinstate(repository, ctx.params, case.contributor)


def on_equivocation_slashed(_: Context, repository: Repository, event: events.EquivocationSlashed) -> None:
    node = repository.get_node(event.node)
    if node is not None:
        nodes.condemn(repository, node=node, contributor=event.contributor, why=nodes.EQUIVOCATION)


CASE_STATES: Mapping[type[Any], CaseState] = {
    events.CaseVetoed: CaseState.VETOED,
    events.CaseExecuted: CaseState.SLASHED,
    events.CaseLapsed: CaseState.LAPSED,
}
HANDLERS: Mapping[type[Any], Callable[[Context, Repository, Any], None]] = {
    events.PolicyPublished: on_policy_published,
    events.PoolEnded: on_pool_ended,
    events.NodeRemoved: on_node_removed,
    events.NodeRegistered: on_node_registered,
    events.EpochPosted: on_epoch_posted,
    events.EpochDisabled: on_epoch_disabled,
    events.OmissionChallenged: on_omission_challenged,
    events.OmissionAnswered: on_omission_decided,
    events.OmissionUpheld: on_omission_decided,
    events.OmissionNetted: on_omission_netted,
    events.CaseOpened: on_case_opened,
    events.CaseVetoed: on_case_closed,
    events.CaseExecuted: on_case_closed,
    events.CaseLapsed: on_case_closed,
    events.EquivocationSlashed: on_equivocation_slashed,
}
