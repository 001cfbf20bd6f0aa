"""The Celery jobs. Each runs short transactions, and then sends the messages that follow from them.

Every job may run twice, late, or in two processes at once without harm. The jobs of the queue "now" never wait for the
chain's node. Beat starts only the two sweeps, which send messages for late work.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from coordinator.context import Context
from coordinator.db.database_outbox import add_intent
from coordinator.db.models import EpochRow, SubmissionRow
from coordinator.db.repository import Repository
from coordinator.domain import (
    attesting,
    epoch_closing,
    judging,
    late_work,
    pausing,
    retention,
    settlement,
    signing,
    tasks,
)
from coordinator.domain.audit_draws import DrawingBlock
from coordinator.domain.late_work import LateWork
from covey.chain.drawing_blocks import find_first_blocks
from covey.chain.node_answers import Block
from covey.errors import TransientError
from covey.protocol.object_keys import build_epoch_key
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Reason
from covey.runtime.log import get_logger

DISPATCHED = 100
"""Maximum number of submissions that one transaction checks."""
VALIDATORS_SECONDS = 10.0
"""Time in seconds between two reads of the validators and their bonds in a jobs process. The court and
`seek_signatures` catch changes in between."""
IDLE_SECONDS = 30.0
"""Time in seconds without a block after which a chain counts as one that mines only on demand."""


def build_jobs(ctx: Context) -> dict[str, Callable[..., None]]:
    """Return the jobs by name. The names are those of `coordinator.queue.routes.ROUTES`."""
    return {
        "sweep": partial(sweep, ctx),
        "sweep_settled": partial(sweep_settled, ctx),
        "assign_tasks": partial(assign_tasks, ctx),
        "expire_leases": partial(expire_leases, ctx),
        "draw_submissions": partial(draw_submissions, ctx),
        "dispatch_validation": partial(dispatch_validation, ctx),
        "seek_signatures": partial(seek_signatures, ctx),
        "begin_epoch": partial(begin_epoch, ctx),
        "close_epoch": partial(close_epoch, ctx),
        "post_epoch": partial(post_epoch, ctx),
        "mark_settled": partial(mark_settled, ctx),
        "prune_epoch": partial(prune_epoch, ctx),
    }


def sweep(ctx: Context) -> None:
    """Send messages for all objects that should have been assigned, decided or settled by now. Writes nothing."""
    with ctx.database.read() as repository:
        late = list(late_work.find_late(repository, ctx.params, ctx.ledger, now=ctx.clock()))
    _send(ctx, late)


def sweep_settled(ctx: Context) -> None:
    """Send messages for missing signatures and outdated files. Writes nothing."""
    days = ctx.config.keep_files_days
    with ctx.database.read() as repository:
        late = list(late_work.find_settled(repository, ctx.terms, keep_files_days=days, now=ctx.clock()))
    _send(ctx, late)


def _send(ctx: Context, late: Iterable[LateWork]) -> None:
    for job, ids, receipts in late:
        ctx.jobs.remind(job, receipts=receipts, **ids)


def assign_tasks(ctx: Context) -> None:
    """Lease pending tasks to waiting nodes until there are no more of either, unless new tasks are paused."""
    count = tasks.MAX_AT_ONCE
    while count == tasks.MAX_AT_ONCE:
        with ctx.database.read() as repository:
            is_idle = not repository.has_waiting(ctx.clock()) or not repository.has_pending()
            if is_idle or pausing.is_paused(repository):
                return
        with ctx.database.write() as repository:
            count = tasks.assign_tasks(repository, ctx.params, now=ctx.clock())


def expire_leases(ctx: Context) -> None:
    """End overdue leases, and plan new tasks instead."""
    with ctx.database.write() as repository:
        ended = tasks.expire_leases(repository, ctx.params, now=ctx.clock())
    if ended:
        get_logger().info("leases or tasks ended", count=ended)
        ctx.jobs.trigger("assign_tasks")
    if ended >= tasks.MAX_AT_ONCE:
        ctx.jobs.trigger("expire_leases")


def draw_submissions(ctx: Context, *, block: int) -> None:
    """Draw the submissions whose drawing blocks are at most `block`, and open their first turns.

    The chain's node is read before the transaction, because a slow node would delay all writers. The follower must have
    stored the block. Otherwise nobody would notice if a reorganization removed it.

    Raises TransientError("no_block"), and TransientError("chain_changes") if the node has another block of that number.
    """
    head = ctx.client.get_block(block)
    with ctx.database.read() as repository:
        stored = dict(repository.list_blocks()).get(block)
        undrawn = repository.list_undrawn(signed_until=head.timestamp - ctx.params.verification.draw_seconds)
    if stored is None:
        return  # The follower has gone on, and has sent a message about a later block.
    if stored != head.hash:
        raise TransientError("chain_changes", f"the chain's node has another block {block} than the follower has read")
    for start in range(0, len(undrawn), DISPATCHED):
        part = undrawn[start : start + DISPATCHED]
        blocks = find_drawing_blocks(ctx, {signed_at for _, signed_at in part}, head=head)
        _dispatch(ctx, [receipt_hash for receipt_hash, _ in part], blocks, head=head)


def dispatch_validation(ctx: Context, *, receipts: Sequence[str]) -> None:
    """Decide the submissions that can be decided, and open further turns for the others.

    The required state of the chain is in memory, so judging continues while the chain's node does not answer.
    """
    for start in range(0, len(receipts), DISPATCHED):
        _dispatch(ctx, receipts[start : start + DISPATCHED], {})


def _dispatch(
    ctx: Context, due: Sequence[str], blocks: Mapping[int, DrawingBlock], *, head: Block | None = None
) -> None:
    """Draw some submissions with the given blocks, decide them or open turns, and log the decisions.

    The blocks are up to `head`. Raises TransientError("chain_changes") if the follower has removed it meanwhile.
    """
    ctx.chain.report_outdated()
    with ctx.database.write() as repository:
        if head is not None and (head.number, head.hash) not in repository.list_blocks():
            raise TransientError("chain_changes", f"block {head.number} was removed while its draws were computed")
        rows = repository.list_undecided(due)
        judging.dispatch(
            repository,
            ctx.params,
            rows,
            validators=ctx.chain.validators,
            active=ctx.chain.active_validators,
            find_block=blocks.get,
            secret=ctx.canary_secret,
            now=ctx.clock(),
        )
    log_decided(rows)
    if any(row.state is not SubmissionState.SUBMITTED for row in rows):  # More tasks may be planned.
        ctx.jobs.trigger("assign_tasks")


def seek_signatures(ctx: Context) -> None:
    """Have more validators judge hard rejections that have too few signatures for the court."""
    seconds = ctx.terms.unbond_window + signing.SIGNING_SECONDS
    with ctx.database.read() as repository:
        if not repository.list_unopened(decided_since=ctx.clock() - 2 * seconds):
            return
    with ctx.database.write() as repository:
        opened = signing.seek_signatures(
            repository, ctx.params, validators=ctx.chain.list_active(), seconds=seconds, now=ctx.clock()
        )
    if opened:
        get_logger().warning("hard rejections need signatures of more validators", turns=opened)


def log_decided(rows: Iterable[SubmissionRow]) -> None:
    """Log decisions: rejections at level info, and all others at level debug."""
    for row in rows:
        if row.state is SubmissionState.SUBMITTED:
            continue
        log = get_logger().info if row.state is SubmissionState.REJECTED else get_logger().debug
        reason = Reason(row.reason).name if row.reason else ""
        log("work was decided", task=row.task, node=row.node, state=row.state, reason=reason, receipt=row.receipt_hash)


def find_drawing_blocks(ctx: Context, signed: Iterable[int], *, head: Block) -> dict[int, DrawingBlock]:
    """Return the drawing blocks that are final, by the time of the countersignature."""
    seconds = ctx.params.verification.draw_seconds
    blocks = find_first_blocks(ctx.client, (signed_at + seconds for signed_at in signed), head=head)
    return {time - seconds: DrawingBlock(block.number, block.hash) for time, block in blocks.items()}


def begin_epoch(ctx: Context) -> None:
    """Begin an epoch if one is due. The chain's time is read only if one may be due.

    Only the time of a block closes a pool. If our own clock were ahead, work would stay unpaid.
    """
    now = ctx.clock()
    with ctx.database.read() as repository:
        if not settlement.may_be_due(repository, ctx.params, ctx.ledger, now=now):
            return
    newest = ctx.client.get_block("latest").timestamp
    with ctx.database.read() as repository:
        is_over = settlement.is_closed(repository, chain_time=newest)
        chain_time = get_chain_time(ctx, newest)
        is_due = settlement.is_due(repository, ctx.params, ctx.ledger, now=now, chain_time=chain_time)
    if is_over:
        report_unpaid(ctx)
        return
    if is_due:
        with ctx.database.write() as repository:  # Another process may have begun one meanwhile.
            is_due = settlement.is_due(repository, ctx.params, ctx.ledger, now=now, chain_time=chain_time)
            number = epoch_closing.begin_epoch(repository, now=now) if is_due else None
        if number is not None:
            ctx.jobs.trigger("close_epoch", epoch=number)


def close_epoch(ctx: Context, *, epoch: int) -> None:
    """Fill an epoch, compute its roots, store its file, record the roots, and trigger its posting.

    One process closes an epoch at a time, because two would read the same submissions and write the same file. No epoch
    is closed after the ledger has stopped accepting epochs. Each transaction is small, so that other writers do not
    wait. Raises TransientError("epoch_before") while the previous epoch is closing.
    """
    with ctx.database.read() as repository:
        row = None if repository.get_fact("closed") else repository.get_epoch(epoch)
    if row is None or not epoch_closing.is_closing(row):
        return
    with closing(ctx.database.open_leadership(f"closing-{epoch % settlement.MAX_UNPOSTED}")) as leadership:
        if not leadership.is_held() or not fill_epoch(ctx, epoch):
            return
        ledger = replace(ctx.ledger, prices=ctx.contracts.pools.get_prices(ctx.ledger.pool))
        with ctx.database.read() as repository:
            closed = epoch_closing.build_epoch(repository, ledger, epoch)
        ctx.store.put_named_by_content(build_epoch_key(ctx.config.pool, closed.header.data_hash), closed.data)
        with ctx.database.write() as repository:
            is_recorded = epoch_closing.record_closed(repository, closed)
    if not is_recorded:
        raise TransientError("epoch_changed", f"an epoch was disabled while epoch {epoch} was computed")
    if ctx.ledger.header_quorum:
        file = build_epoch_key(ctx.config.pool, closed.header.data_hash)
        required = ctx.ledger.header_quorum
        get_logger().info("an epoch awaits signatures of validators", epoch=epoch, file=file, required=required)
    ctx.jobs.trigger("post_epoch", epoch=epoch)
    ctx.jobs.trigger("close_epoch", epoch=epoch + 1)  # It may wait for the hash of this one.


def fill_epoch(ctx: Context, number: int) -> bool:
    """Put all decided submissions that are in no epoch into this one. Return whether the epoch is filled."""
    with ctx.database.read() as repository:
        row = repository.get_epoch(number)
        is_filled = row is not None and bool(row.work_root)
        chosen = [] if is_filled else [receipt_hash for receipt_hash, _ in repository.list_unsettled()]
    for start in range(0, len(chosen), epoch_closing.SLICE):
        part = chosen[start : start + epoch_closing.SLICE]
        with ctx.database.write() as repository:
            epoch_closing.put_leaves(repository, ctx.ledger, number, part)
    if is_filled:
        return True
    with ctx.database.read() as repository:
        leaves = epoch_closing.list_leaves(repository, number)
    work_root = epoch_closing.compute_work_root(leaves)  # Not in the transaction, which all writers would wait for.
    with ctx.database.write() as repository:
        return epoch_closing.record_filled(repository, number, leaves, work_root)


def post_epoch(ctx: Context, *, epoch: int) -> None:
    """Add an intent that posts a closed epoch, once the previous one is posted and the ledger accepts another one.

    Only the time of a block closes a pool that has ended, as in `begin_epoch`. In a pool with a `header_quorum` nothing
    is added until enough validators have signed the header, because the ledger would refuse it.
    """
    with ctx.database.read() as repository:
        if repository.get_fact("closed") or settlement.find_try(repository, ctx.ledger, epoch, now=ctx.clock()) is None:
            return
        last, has_ended = repository.get_epoch(epoch - 1), bool(repository.get_fact("ended"))
    if has_ended or last is not None:
        newest = ctx.client.get_block("latest").timestamp
        with ctx.database.read() as repository:
            is_over = settlement.is_closed(repository, chain_time=newest)
        is_early = last is not None and get_chain_time(ctx, newest) < settlement.compute_earliest(
            ctx.ledger, after=last
        )
        if is_over or is_early:
            return
    with ctx.database.write() as repository:
        tries = settlement.find_try(repository, ctx.ledger, epoch, now=ctx.clock())
        row = repository.get_epoch(epoch)
        if tries is None or row is None:
            return
        active = ctx.chain.active_validators
        signatures = attesting.find_quorum(repository, ctx.ledger, row, active, with_spares=tries > 0)
        if signatures is None:
            warn_late(ctx, repository, row)
            return
        if tries:
            refused = repository.get_intent(settlement.name_intent(ctx.ledger.pool, epoch, tries - 1))
            reason = "" if refused is None else refused.reason
            get_logger().error("the ledger refused an epoch", epoch=epoch, reason=reason, tries=tries)
        call = ctx.contracts.ledger.post(settlement.build_header(row, ctx.ledger.pool), signatures)
        add_intent(repository, key=settlement.name_intent(ctx.ledger.pool, epoch, tries), call=call)


def warn_late(ctx: Context, repository: Repository, row: EpochRow) -> None:
    """Log once who has signed an epoch that has waited for long, and who has not."""
    if not attesting.is_late(repository, row, now=ctx.clock()):
        return
    signers = attesting.find_signers(repository, ctx.ledger.pool, row, ctx.chain.active_validators)
    attesting.record_warned(repository, row.number)
    get_logger().warning(
        "an epoch cannot be posted, because too few bonded validators have signed it",
        epoch=row.number,
        signed=signers.signed,
        missing=signers.missing,
        required=ctx.ledger.header_quorum,
        advice=attesting.ADVICE,
    )


def mark_settled(ctx: Context, *, epoch: int) -> None:
    """Mark the submissions of a posted epoch as settled, one slice at a time."""
    with ctx.database.read() as repository:
        is_left = epoch in repository.list_unmarked()
    while is_left:
        with ctx.database.write() as repository:
            is_left = settlement.mark_settled(repository, epoch, limit=epoch_closing.SLICE)


def prune_epoch(ctx: Context, *, epoch: int) -> None:
    """Delete the files of an epoch's submissions, one slice at a time, if `keep_files_days` allows it."""
    days = ctx.config.keep_files_days
    if days is None:
        return
    final_before = ctx.client.get_block("latest").timestamp - retention.compute_keeping(days, ctx.terms)
    while True:
        with ctx.database.read() as repository:
            outdated = retention.find_outdated(repository, ctx.params, ctx.config.pool, final_before=final_before)
        if outdated is None or outdated.epoch != epoch:
            return
        ctx.store.delete_all(outdated.keys)
        with ctx.database.write() as repository:
            retention.record_pruned(repository, outdated)


def report_unpaid(ctx: Context) -> None:
    """Log once how many decided submissions of a closed pool are in no posted epoch."""
    with ctx.database.read() as repository:
        if repository.get_fact("closed"):
            return
        closes_at = repository.get_fact("closes_at")
        count = repository.sum_unsettled().submissions + repository.count_unposted_leaves()
    with ctx.database.write() as repository:
        repository.set_fact("closed", 1)
    if count:
        get_logger().error(
            "the pool is closed, so no epoch can pay for these submissions",
            submissions=count,
            closed_at=closes_at,
        )


def get_chain_time(ctx: Context, newest: int) -> float:
    """Return a lower bound for the next block's time: the newest block's, or ours if blocks are mined on demand."""
    now = ctx.clock()
    return now if now - newest > IDLE_SECONDS else newest
