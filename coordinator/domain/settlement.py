"""Settlement: when an epoch is due, and what the chain reports about it. `epoch_closing` computes its contents."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.db.models import EpochRow, SubmissionRow
from coordinator.db.repository import Repository
from covey.chain.outbox import IntentState
from covey.chain.structs import EpochRecord
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import Address, Hash, PoolId, Step, TaskId
from covey.protocol.params import PoolParams
from covey.protocol.prices import EpochPrices, ScheduledPrice
from covey.protocol.verdict_fees import VerdictFees

RETRY_SECONDS, MAX_RETRY_SECONDS = 10.0, 300.0
"""Time in seconds between attempts to post an epoch that the ledger refuses. It doubles up to the maximum."""
MAX_UNPOSTED = 2
"""Maximum number of epochs that are not on chain. The second one is filled while the first one closes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The contract where rewards are claimed, and the pool's terms of payment."""

    chain_id: int
    address: Address
    pool: PoolId
    prices: tuple[ScheduledPrice, ...]
    """All prices of the pool, oldest first. The last one may not hold yet."""
    epoch_units: int
    """Maximum number of work units in one epoch."""
    epoch_length: int
    """Minimum time in seconds between two postings, by the chain's clock."""
    windows: int
    """Time in seconds from the posting of an epoch until it is final."""
    fees: VerdictFees = field(default_factory=VerdictFees)
    """What an epoch pays for verdicts."""
    header_quorum: int = 0
    """Number of validators that must sign the header of an epoch (see `coordinator.domain.attesting`)."""


def is_due(repository: Repository, params: PoolParams, ledger: Ledger, *, now: float, chain_time: float) -> bool:
    """Return whether an epoch should begin, because its time has come, it is full, or the pool has ended.

    At the pool's end, an epoch begins once everything is decided. No epoch begins that the ledger would refuse at
    `chain_time`, the time of the block in which it would be posted.
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
    """Return whether an epoch may be due or the pool may be closed by our clock. The chain's time decides both."""
    if repository.get_fact("closed"):
        return False
    is_closed_by_clock = is_closed(repository, chain_time=now)
    return is_closed_by_clock or is_due(repository, params, ledger, now=now, chain_time=math.inf)


def may_begin(repository: Repository) -> bool:
    """Return whether another epoch may begin: all unposted ones are filled and fewer than MAX_UNPOSTED."""
    unposted = repository.list_unposted()
    return len(unposted) < MAX_UNPOSTED and all(row.work_root for row in unposted)


def read_prices(repository: Repository, prices: Sequence[ScheduledPrice], *, windows: int, now: float) -> EpochPrices:
    """Return the prices of the pool's epochs. `windows` are the seconds from an epoch's posting until it is final."""
    final = repository.list_final_times() if len(prices) > 1 else {}
    posted_at = {number: final_at - windows for number, final_at in final.items()}
    return EpochPrices(prices=prices, posted_at=posted_at, now=int(now))


def compute_earliest(ledger: Ledger, *, after: EpochRow) -> float:
    """Return the earliest chain time at which the ledger accepts the epoch after `after`.

    For an epoch that is not posted yet, it is an estimate: what begins much earlier could not be posted, and a cheat
    that is found meanwhile could not be taken out of it.
    """
    posted_at = after.closed_at if after.final_at is None else after.final_at - ledger.windows
    return posted_at + ledger.epoch_length


def name_intent(pool: PoolId, number: int, tries: int) -> str:
    """Return the key of the intent that posts an epoch, after `tries` earlier attempts."""
    return f"epoch/{pool}/{number}/{tries}"


def find_try(repository: Repository, ledger: Ledger, number: int, *, now: float) -> int | None:
    """Return the number of earlier attempts to post an epoch if another attempt is due now, otherwise None.

    None is due if the epoch is closing or posted, if the previous epoch is not posted, or if an attempt is pending. A
    refused epoch is tried again with growing pauses, because the operator may fix the cause, such as too little escrow.
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
    """Return the number of the next epoch to begin."""
    last = repository.get_last_epoch_number()
    return 0 if last is None else last + 1


def is_closed(repository: Repository, *, chain_time: float) -> bool:
    """Return whether the ledger accepts no more epochs, because the pool has ended and is closed at `chain_time`."""
    return bool(repository.get_fact("ended")) and 0 < repository.get_fact("closes_at") <= chain_time


def build_header(epoch: EpochRow, pool: PoolId) -> EpochHeader:
    """Return the header of a closed epoch, which is posted on chain."""
    return EpochHeader(
        pool=pool,
        epoch=epoch.number,
        work_root=Hash(epoch.work_root),
        reward_root=Hash(epoch.reward_root),
        leaf_count=epoch.leaf_count,
        units=epoch.units,
        verdicts=epoch.verdicts,
        data_hash=Hash(epoch.data_hash),
        previous_hash=Hash(epoch.previous_hash),
    )


def is_known(repository: Repository, header: EpochHeader) -> bool:
    """Return whether a posted epoch is the one that was closed in this database."""
    epoch = repository.get_epoch(header.epoch)
    return epoch is not None and build_header(epoch, header.pool) == header


def record_posted(repository: Repository, header: EpochHeader, record: EpochRecord, *, block: int) -> bool:
    """Record that an epoch is on chain. The job `mark_settled` then marks its submissions as settled.

    Returns False if the epoch was not closed in this database.
    """
    epoch = repository.get_epoch(header.epoch)
    if epoch is None or not is_known(repository, header):
        return False
    epoch.posted_block, epoch.header_hash, epoch.final_at = block, record.header_hash, record.final_at
    epoch.reward, epoch.cumulative = str(record.reward), str(record.cumulative)
    repository.clear_attestations(header.epoch)
    return True


def mark_settled(repository: Repository, number: int, *, limit: int) -> bool:
    """Mark at most `limit` submissions of a posted epoch as settled. Return whether any may be left."""
    if repository.mark_settled(number, limit=limit) == limit:
        return True
    epoch = repository.get_epoch(number)
    if epoch is not None:
        epoch.settled = True
    return False


def record_disabled(repository: Repository, *, number: int) -> None:
    """Record that the arbiter disabled an epoch, and release its submissions for a later one.

    Nothing can be claimed against a disabled epoch. Later epochs that are closed and not posted are closed again: their
    rewards include those of this epoch, and the ledger refuses their headers, which name the header of this one.
    """
    epoch = repository.get_epoch(number)
    if epoch is None:
        return
    if not epoch.disabled:
        epoch.disabled = True
        repository.release_from_epoch(number)
    for later in repository.list_unposted():
        if later.number > number:
            later.data_hash = ""


def build_work_leaf(row: SubmissionRow) -> WorkLeaf:
    """Return the leaf of a decided submission. Raises ValueError if it is undecided."""
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
