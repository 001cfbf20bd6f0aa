"""What each Celery job does: short transactions on the rows, then the triggers that follow from them.

Every job may run twice, late, or in two processes at once without harm. The jobs of the queue "now" never wait for the
chain's node.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial

from coordinator.context import Context
from coordinator.db.database_outbox import add_intent
from coordinator.db.models import EpochRow, SubmissionRow
from coordinator.db.repository import Repository
from coordinator.domain import epoch_closing, judging, pausing, retention, settlement, signing, tasks
from coordinator.domain.audit_draws import DrawingBlock
from covey.chain.drawing_blocks import find_first_blocks
from covey.chain.node_answers import Block
from covey.chain.outbox import IntentState
from covey.protocol.object_keys import build_epoch_key
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Reason
from covey.runtime.log import get_logger

RETRY_SECONDS, MAX_RETRY_SECONDS = 10.0, 300.0
"""Seconds between two tries to post an epoch that the ledger refuses: from the first value they double to the other."""
DISPATCHED = 100
"""Maximum number of submissions that are looked at in one transaction."""
VALIDATORS_SECONDS = 10.0
"""Seconds between two looks at the validators and their bonds in a jobs process, whatever their age. What is missed
meanwhile is found by the court, and by `seek_signatures`."""
IDLE_SECONDS = 30.0
"""A chain without a block for so long mines only what is sent to it."""


def build_jobs(ctx: Context) -> dict[str, Callable[..., None]]:
    """The jobs by name; the names are those of `coordinator.queue.routes.ROUTES`."""
    return {
        "assign_tasks": partial(assign_tasks, ctx),
        "expire_leases": partial(expire_leases, ctx),
        "draw_submissions": partial(draw_submissions, ctx),
        "dispatch_validation": partial(dispatch_validation, ctx),
        "seek_signatures": partial(seek_signatures, ctx),
        "settle_epoch": partial(settle_epoch, ctx),
        "close_epoch": partial(close_epochs, ctx),
        "mark_settled": partial(mark_settled, ctx),
        "prune_files": partial(prune_files, ctx),
    }


def assign_tasks(ctx: Context) -> None:
    """Lease pending tasks to waiting nodes, until there are no more of either. None is leased during a pause."""
    count = tasks.MAX_AT_ONCE
    while count == tasks.MAX_AT_ONCE:
        with ctx.database.read() as repository:
            is_idle = not repository.has_waiting(ctx.clock()) or not repository.has_pending()
            if is_idle or pausing.is_paused(repository):
                return
        with ctx.database.write() as repository:
            count = tasks.assign_tasks(repository, ctx.params, now=ctx.clock())


def expire_leases(ctx: Context) -> None:
    """End what is overdue, and plan other tasks in its place."""
    with ctx.database.write() as repository:
        ended = tasks.expire_leases(repository, ctx.params, now=ctx.clock())
    if ended:
        get_logger().info("leases or tasks ended", count=ended)
        ctx.jobs.trigger("assign_tasks")
    if ended >= tasks.MAX_AT_ONCE:
        ctx.jobs.trigger("expire_leases")


def draw_submissions(ctx: Context) -> None:
    """Find the blocks that draw the submissions that are due, and open the first turns.

    It waits for the chain's node, before its transaction: a node that is slow would hold up all who write.
    """
    started, looked_at = ctx.clock(), DISPATCHED
    while looked_at == DISPATCHED:
        with ctx.database.read() as repository:
            rows = repository.list_due(started, limit=DISPATCHED, is_drawn=False)
            due, signed = [row.receipt_hash for row in rows], {row.signed_at for row in rows}
        looked_at = len(due)
        if due:
            head = ctx.client.get_block(ctx.config.finality)
            _dispatch(ctx, due, find_drawing_blocks(ctx, signed, head=head))


def dispatch_validation(ctx: Context) -> None:
    """Decide what can be decided and open further turns, for the drawn submissions that are due.

    What it needs of the chain is in memory, so judging goes on while the chain's node does not answer.
    """
    started, looked_at = ctx.clock(), DISPATCHED
    while looked_at == DISPATCHED:
        with ctx.database.read() as repository:
            due = [row.receipt_hash for row in repository.list_due(started, limit=DISPATCHED, is_drawn=True)]
        looked_at = len(due)
        if due:
            _dispatch(ctx, due, {})


def _dispatch(ctx: Context, due: Sequence[str], blocks: Mapping[int, DrawingBlock]) -> None:
    """Draw some submissions by the blocks, decide them or open turns, and log what was decided."""
    ctx.chain.report_outdated()
    with ctx.database.write() as repository:
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
    """Have more validators judge hard rejections that the court would not hear with the signatures at hand."""
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
    """Log what was decided: rejections at level info, and all others at level debug."""
    for row in rows:
        if row.state is SubmissionState.SUBMITTED:
            continue
        log = get_logger().info if row.state is SubmissionState.REJECTED else get_logger().debug
        reason = Reason(row.reason).name if row.reason else ""
        log("work was decided", task=row.task, node=row.node, state=row.state, reason=reason, receipt=row.receipt_hash)


def find_drawing_blocks(ctx: Context, signed: Iterable[int], *, head: Block) -> dict[int, DrawingBlock]:
    """The blocks that draw, by the times of the countersignatures; without those that are not final yet."""
    seconds = ctx.params.verification.draw_seconds
    blocks = find_first_blocks(ctx.client, (signed_at + seconds for signed_at in signed), head=head)
    return {time - seconds: DrawingBlock(block.number, block.hash) for time, block in blocks.items()}


def settle_epoch(ctx: Context) -> None:
    """Begin an epoch that is due, and have what is closed posted. The chain's time is read only if one may be due.

    A pool is closed only by the time of a block: what is closed by a clock that is ahead would stay unpaid.
    """
    now = ctx.clock()
    with ctx.database.read() as repository:
        is_any_closed = not all(map(epoch_closing.is_closing, repository.list_unposted()))
        may_be_over = settlement.is_closed(repository, chain_time=math.inf)
        may_be_due = settlement.is_due(repository, ctx.params, ctx.ledger, now=now, chain_time=math.inf)
    if may_be_over or may_be_due:
        newest = ctx.client.get_block("latest").timestamp
        chain_time = get_chain_time(ctx, newest)
        with ctx.database.read() as repository:
            is_over = settlement.is_closed(repository, chain_time=newest)
            is_due = settlement.is_due(repository, ctx.params, ctx.ledger, now=now, chain_time=chain_time)
        if is_over:
            report_unpaid(ctx)
            return
        if is_due:
            with ctx.database.write() as repository:
                number = epoch_closing.begin_epoch(repository, now=ctx.clock())
            if number is not None:
                ctx.jobs.trigger("close_epoch", epoch=number)
    if is_any_closed:
        post_epochs(ctx)


def close_epochs(ctx: Context, *, epoch: int | None = None) -> None:
    """Compute the roots of an epoch that is closing, and ask for its posting. None: of any that is closing.

    One process closes at a time, because two would read the same submissions and write the same file. None closes an
    epoch once it is known that the ledger takes no more.
    """
    with ctx.database.read() as repository:
        unposted = [] if repository.get_fact("closed") else repository.list_unposted()
        numbers = [row.number for row in unposted if epoch_closing.is_closing(row) and epoch in (None, row.number)]
    if not numbers:
        return
    with closing(ctx.database.open_leadership("closing")) as leadership:
        if not leadership.is_held():
            return
        for number in numbers:
            close_epoch(ctx, number)
    ctx.jobs.trigger("settle_epoch")


def close_epoch(ctx: Context, number: int) -> None:
    """Put submissions into an epoch, compute its roots, and put its file into the store before the roots are recorded.

    Each transaction writes little, so that nobody waits for it.
    """
    with ctx.database.read() as repository:
        chosen = [receipt_hash for receipt_hash, _ in repository.list_unsettled()]
    for start in range(0, len(chosen), epoch_closing.SLICE):
        with ctx.database.write() as repository:
            if not epoch_closing.put_leaves(
                repository, ctx.ledger, number, chosen[start : start + epoch_closing.SLICE]
            ):
                return
    with ctx.database.read() as repository:
        closed = epoch_closing.build_epoch(repository, ctx.ledger, number)
    if not closed.header.leaf_count:
        return  # All were taken back meanwhile, and the next try finds others.
    ctx.store.put_named_by_content(build_epoch_key(ctx.config.pool, closed.header.data_hash), closed.data)
    with ctx.database.write() as repository:
        if not epoch_closing.record_closed(repository, closed):
            get_logger().warning("an epoch was changed while it was computed, so it is computed again", epoch=number)


def post_epochs(ctx: Context) -> None:
    """Have an intent for each epoch that is closed and not on chain. The caller makes sure that the pool is open."""
    with ctx.database.write() as repository:
        for epoch in repository.list_unposted():
            if not epoch_closing.is_closing(epoch):
                post_epoch(ctx, repository, epoch)


def mark_settled(ctx: Context) -> None:
    """Mark the submissions of posted epochs as settled, a slice at a time."""
    with ctx.database.read() as repository:
        unmarked = repository.list_unmarked()
    for number in unmarked:
        is_left = True
        while is_left:
            with ctx.database.write() as repository:
                is_left = settlement.mark_settled(repository, number, limit=epoch_closing.SLICE)


def prune_files(ctx: Context) -> None:
    """Remove some files of submissions that have been final for as long as the settings say."""
    days = ctx.config.keep_files_days
    if days is None:
        return
    final_before = ctx.client.get_block("latest").timestamp - retention.compute_keeping(days, ctx.terms)
    with ctx.database.read() as repository:
        outdated = retention.find_outdated(repository, ctx.params, ctx.config.pool, final_before=final_before)
    if outdated is None:
        return
    ctx.store.delete_all(outdated.keys)
    with ctx.database.write() as repository:
        retention.record_pruned(repository, outdated)
    ctx.jobs.trigger("prune_files")


def report_unpaid(ctx: Context) -> None:
    """Log once how many decided submissions of a closed pool are in no epoch that was posted."""
    with ctx.database.read() as repository:
        if repository.get_fact("closed"):
            return
        closes_at = repository.get_fact("closes_at")
        count = repository.sum_unsettled().submissions + repository.count_unposted_leaves()
    with ctx.database.write() as repository:
        repository.set_fact("closed", 1)
    if count:
        get_logger().error(
            "the pool is closed: no epoch can pay for these submissions any more",
            submissions=count,
            closed_at=closes_at,
        )


def get_chain_time(ctx: Context, newest: int) -> float:
    """A time that the next block's is not before: the newest block's, or ours where blocks come only on demand."""
    now = ctx.clock()
    return now if now - newest > IDLE_SECONDS else newest


def post_epoch(ctx: Context, repository: Repository, epoch: EpochRow) -> None:
    """Have an intent for a closed epoch.  One that the ledger refused (too little escrow, say) is tried again, ever
    more rarely: the operator may have mended the cause."""
    tries, next_at, refused = 0, epoch.closed_at, None
    while (row := repository.get_intent(_name_intent(ctx, epoch, tries))) is not None:
        next_at += min(RETRY_SECONDS * 2 ** max(0, min(tries, 10) - 1), MAX_RETRY_SECONDS)
        if row.state != IntentState.REVERTED or ctx.clock() < next_at:
            return
        tries, refused = tries + 1, row
    if refused is not None:
        get_logger().error("the ledger refused an epoch", epoch=epoch.number, reason=refused.reason, tries=tries)
    call = ctx.contracts.ledger.post(settlement.build_header(epoch, ctx.ledger.pool))
    add_intent(repository, key=_name_intent(ctx, epoch, tries), call=call)


def _name_intent(ctx: Context, epoch: EpochRow, tries: int) -> str:
    return f"epoch/{ctx.config.pool}/{epoch.number}/{tries}"
