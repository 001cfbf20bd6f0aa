"""Finds late work: its message was lost with a broker, or it became due by the clock alone, without an event."""

from collections.abc import Iterator
from typing import NamedTuple

from coordinator.db.repository import Repository
from coordinator.domain import epoch_closing, pausing, retention, settlement, signing, tasks
from coordinator.domain.settlement import Ledger
from covey.chain.structs import PoolTerms
from covey.protocol.params import PoolParams

LATE_SECONDS = 1.0
"""Time in seconds after which a due check of a submission is late. Its own message had time to arrive."""
CLOSING_LATE_SECONDS = 10.0
"""Time in seconds after which the message for an epoch that is still closing is sent again."""
CLOCKS_DIFFER_SECONDS = 60.0
"""Seconds by which our clock may be behind the chain's time."""
MAX_LATE = 1_000
"""Maximum number of submissions that one search returns."""


class LateWork(NamedTuple):
    """A message to send to a job. Example: LateWork("close_epoch", {"epoch": 3})."""

    job: str
    ids: dict[str, int]
    receipts: tuple[str, ...] = ()


def find_late(repository: Repository, params: PoolParams, ledger: Ledger, *, now: float) -> Iterator[LateWork]:
    """Yield messages for tasks, leases, submissions and epochs that should have been processed by now."""
    if repository.has_waiting(now) and repository.has_pending() and not pausing.is_paused(repository):
        yield LateWork("assign_tasks", {})
    if tasks.has_overdue(repository, params, now=now):
        yield LateWork("expire_leases", {})
    blocks = repository.list_blocks()
    if blocks and repository.has_undrawn(due_until=now):
        yield LateWork("draw_submissions", {"block": blocks[-1][0]})
    if due := repository.list_due(now - LATE_SECONDS, limit=MAX_LATE):
        yield LateWork("dispatch_validation", {}, tuple(due))
    if settlement.may_be_due(repository, params, ledger, now=now):
        yield LateWork("begin_epoch", {})
    yield from _find_late_epochs(repository, ledger, now)


def _find_late_epochs(repository: Repository, ledger: Ledger, now: float) -> Iterator[LateWork]:
    if not repository.get_fact("closed"):
        for row in repository.list_unposted():
            if not epoch_closing.is_closing(row):
                before = repository.get_epoch(row.number - 1)
                earliest = 0 if before is None else settlement.compute_earliest(ledger, after=before)
                is_early = now + CLOCKS_DIFFER_SECONDS < earliest  # The chain's time decides, and the job reads it.
                if not is_early and settlement.find_try(repository, ledger, row.number, now=now) is not None:
                    yield LateWork("post_epoch", {"epoch": row.number})
            elif now - row.closed_at >= CLOSING_LATE_SECONDS:
                yield LateWork("close_epoch", {"epoch": row.number})
    for number in repository.list_unmarked():
        yield LateWork("mark_settled", {"epoch": number})


def find_settled(
    repository: Repository, terms: PoolTerms, *, keep_files_days: float | None, now: float
) -> Iterator[LateWork]:
    """Yield messages for missing signatures and outdated files, which become due minutes or days after a decision."""
    seconds = terms.unbond_window + signing.SIGNING_SECONDS
    if repository.list_unopened(decided_since=now - 2 * seconds):
        yield LateWork("seek_signatures", {})
    if keep_files_days is None:
        return
    epoch = repository.get_epoch(repository.get_fact(retention.EPOCH))
    keeping = retention.compute_keeping(keep_files_days, terms)
    if epoch is not None and epoch.final_at is not None and epoch.final_at + keeping <= now:
        yield LateWork("prune_epoch", {"epoch": epoch.number})
