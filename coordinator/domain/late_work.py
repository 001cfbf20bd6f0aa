"""What is late: its message was lost with a broker, or nothing but the clock says that it is due."""

from collections.abc import Iterator
from typing import NamedTuple

from coordinator.db.repository import Repository
from coordinator.domain import epoch_closing, pausing, retention, settlement, signing, tasks
from coordinator.domain.settlement import Ledger
from covey.chain.structs import PoolTerms
from covey.protocol.params import PoolParams

LATE_SECONDS = 1.0
"""Seconds after which a check of a submission is late. Its own message has had time to arrive."""
CLOSING_LATE_SECONDS = 10.0
"""Seconds after which an epoch that is still closing is asked for again."""
MAX_LATE = 1_000
"""Maximum number of submissions that one look returns."""


class LateWork(NamedTuple):
    """A message to send. Example: LateWork("close_epoch", {"epoch": 3})."""

    job: str
    ids: dict[str, int]
    receipts: tuple[str, ...] = ()


def find_late(repository: Repository, params: PoolParams, ledger: Ledger, *, now: float) -> Iterator[LateWork]:
    """Find what should have been assigned, ended, drawn, decided, begun, closed, posted or marked by now."""
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
                if settlement.find_try(repository, ledger, row.number, now=now) is not None:
                    yield LateWork("post_epoch", {"epoch": row.number})
            elif now - row.closed_at >= CLOSING_LATE_SECONDS:
                yield LateWork("close_epoch", {"epoch": row.number})
    for number in repository.list_unmarked():
        yield LateWork("mark_settled", {"epoch": number})


def find_settled(
    repository: Repository, terms: PoolTerms, *, keep_files_days: float | None, now: float
) -> Iterator[LateWork]:
    """Find what follows a decision after minutes or days: missing signatures, and files that may be removed."""
    seconds = terms.unbond_window + signing.SIGNING_SECONDS
    if repository.list_unopened(decided_since=now - 2 * seconds):
        yield LateWork("seek_signatures", {})
    if keep_files_days is None:
        return
    epoch = repository.get_epoch(repository.get_fact(retention.EPOCH))
    keeping = retention.compute_keeping(keep_files_days, terms)
    if epoch is not None and epoch.final_at is not None and epoch.final_at + keeping <= now:
        yield LateWork("prune_epoch", {"epoch": epoch.number})
