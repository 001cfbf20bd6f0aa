"""When an epoch is due, and what the chain says of it. `epoch_closing` computes its contents."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.db.models import EpochRow, SubmissionRow
from coordinator.db.repository import Repository
from covey.chain.outbox import IntentState
from covey.chain.structs import EpochRecord
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import Address, Hash, PoolId, Step, TaskId
from covey.protocol.params import PoolParams

PROMISED_EPOCHS = 64
"""A countersignature promises inclusion at most so many epochs later."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 10.0, 300.0
"""Seconds between two tries to post an epoch that the ledger refuses: from the first value they double to the other."""
MAX_UNPOSTED = 2
"""Maximum number of epochs that the chain does not have. The second one is filled while the first one closes."""
SPARE_EPOCHS = 8
"""Epochs before the promised one from which a submission is decided with the verdicts at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where rewards are claimed, and the price."""

    chain_id: int
    address: Address
    pool: PoolId
    price: int
    """Token units for one work unit."""
    epoch_units: int
    """What one epoch may pay for at most."""
    epoch_length: int
    """Seconds between two postings at least, as the chain counts."""
    windows: int
    """Seconds from posting until an epoch is final."""


def is_due(repository: Repository, params: PoolParams, ledger: Ledger, *, now: float, chain_time: float) -> bool:
    """Return whether an epoch should begin: by the clock, when it is full, or at the pool's end once all is decided.

    None begins that the ledger would refuse at `chain_time`, the time of the block that it would be in.
    """
    waiting = repository.sum_unsettled()
    if not waiting.submissions or waiting.least_units > ledger.epoch_units or not may_begin(repository):
        return False
    last = repository.get_last_epoch()
    if last is not None and chain_time < compute_earliest(ledger, after=last):
        return False
    if repository.get_fact("ended") and not repository.has_undecided():
        return True
    is_full = waiting.submissions >= params.epoch_leaves or waiting.units > ledger.epoch_units
    return is_full or now - (waiting.first_decided_at if last is None else last.closed_at) >= params.epoch_seconds


def may_be_due(repository: Repository, params: PoolParams, ledger: Ledger, *, now: float) -> bool:
    """Return whether an epoch may be due, or the pool may be closed by now. The chain's time decides both."""
    if repository.get_fact("closed"):
        return False
    is_closed_by_clock = is_closed(repository, chain_time=now)
    return is_closed_by_clock or is_due(repository, params, ledger, now=now, chain_time=math.inf)


def may_begin(repository: Repository) -> bool:
    """Return whether another epoch may begin: the ones before it are filled, and few are not posted yet."""
    unposted = repository.list_unposted()
    return len(unposted) < MAX_UNPOSTED and all(row.work_root for row in unposted)


def compute_earliest(ledger: Ledger, *, after: EpochRow) -> int:
    """Return the earliest time of the chain at which the ledger takes the next epoch. 0 if `after` is not posted."""
    return 0 if after.final_at is None else after.final_at - ledger.windows + ledger.epoch_length


def name_intent(pool: PoolId, number: int, tries: int) -> str:
    """Return the key of the intent that posts an epoch for the first time (0) or again."""
    return f"epoch/{pool}/{number}/{tries}"


def find_try(repository: Repository, ledger: Ledger, number: int, *, now: float) -> int | None:
    """Return the number of the try to post an epoch that is due now.

    None if the epoch is closing or posted, if the chain does not have the one before it, or if a try is under way. An
    epoch that the ledger refused is tried again ever more rarely: the operator may have mended the cause, such as too
    little escrow.
    """
    epoch, before = repository.get_epoch(number), repository.get_epoch(number - 1)
    if epoch is None or not epoch.data_hash or epoch.posted_block is not None:
        return None
    if before is not None and before.posted_block is None:
        return None
    tries, next_at = 0, epoch.closed_at
    while (row := repository.get_intent(name_intent(ledger.pool, number, tries))) is not None:
        next_at += min(RETRY_SECONDS * 2 ** max(0, min(tries, 10) - 1), MAX_RETRY_SECONDS)
        if row.state != IntentState.REVERTED or now < next_at:
            return None
        tries += 1
    return tries


def get_next_number(repository: Repository) -> int:
    """Number of the epoch that closes next."""
    last = repository.get_last_epoch_number()
    return 0 if last is None else last + 1


def compute_promised_epoch(repository: Repository) -> int:
    """Number of the latest epoch that a countersignature promises now."""
    return get_next_number(repository) + PROMISED_EPOCHS


def find_due(repository: Repository, params: PoolParams, rows: Sequence[SubmissionRow], *, now: float) -> set[str]:
    """Receipt hashes of submissions that can wait for validators no longer: an undecided one is in no epoch, which
    breaks the operator's promise and costs its bond."""
    latest = get_next_number(repository) + SPARE_EPOCHS
    return {
        row.receipt_hash for row in rows if latest >= row.latest_epoch or now >= row.signed_at + params.receipt_seconds
    }


def is_closed(repository: Repository, *, chain_time: float) -> bool:
    """Whether the ledger takes no epoch any more: the pool has ended, and was closed by `chain_time`."""
    return bool(repository.get_fact("ended")) and 0 < repository.get_fact("closes_at") <= chain_time


def build_header(epoch: EpochRow, pool: PoolId) -> EpochHeader:
    """What is posted of a closed epoch."""
    return EpochHeader(
        pool=pool,
        epoch=epoch.number,
        work_root=Hash(epoch.work_root),
        reward_root=Hash(epoch.reward_root),
        leaf_count=epoch.leaf_count,
        units=epoch.units,
        data_hash=Hash(epoch.data_hash),
        previous_hash=Hash(epoch.previous_hash),
    )


def is_known(repository: Repository, header: EpochHeader) -> bool:
    """Return whether an epoch that the chain has was closed in this database."""
    epoch = repository.get_epoch(header.epoch)
    return epoch is not None and build_header(epoch, header.pool) == header


def record_posted(repository: Repository, header: EpochHeader, record: EpochRecord, *, block: int) -> bool:
    """Note that the chain holds the epoch. The job `mark_settled` then marks its submissions as settled.

    Returns False for an epoch that was not closed here.
    """
    epoch = repository.get_epoch(header.epoch)
    if epoch is None or not is_known(repository, header):
        return False
    epoch.posted_block, epoch.header_hash, epoch.final_at = block, record.header_hash, record.final_at
    epoch.reward, epoch.cumulative = str(record.reward), str(record.cumulative)
    return True


def mark_settled(repository: Repository, number: int, *, limit: int) -> bool:
    """Mark at most `limit` submissions of an epoch on chain as settled. Return whether some may be left."""
    if repository.mark_settled(number, limit=limit) == limit:
        return True
    epoch = repository.get_epoch(number)
    if epoch is not None:
        epoch.settled = True
    return False


def record_disabled(repository: Repository, *, number: int) -> None:
    """The arbiter disabled the epoch: nothing can be claimed against it, and its submissions go into a later one."""
    epoch = repository.get_epoch(number)
    if epoch is not None and not epoch.disabled:
        epoch.disabled = True
        repository.release_from_epoch(number)


def build_work_leaf(row: SubmissionRow) -> WorkLeaf:
    """The leaf of a decided submission."""
    if row.decision is None:
        raise ValueError(f"submission {row.receipt_hash} is not decided")
    return WorkLeaf(
        receipt_hash=Hash(row.receipt_hash),
        work_key=Hash(row.work_key),
        node=Address(row.node),
        contributor=Address(row.contributor),
        task=TaskId(row.task),
        policy_version=Step(row.policy_version),
        signed_at=row.signed_at,
        outcome=row.decision,
        reason=row.reason,
        units=row.units,
        evidence_hash=Hash(row.evidence_hash),
    )
