"""Epochs: one root for all decided work, one for what every contributor has earned.  Called by Celery and `api`.

Pay is units x the pool's price and cumulative over the pool's life.  The leaves lie in the store under their hash, so
anyone can recompute both roots.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from coordinator.db.models import EpochRow, RewardRow, SubmissionRow
from coordinator.db.repository import Repository
from covey.chain.structs import EpochRecord
from covey.errors import ProtocolError
from covey.protocol import canonical, merkle
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import ZERO_HASH, Address, Hash, PoolId, Step, TaskId
from covey.protocol.params import PoolParams
from covey.protocol.status import SubmissionState

PROMISED_EPOCHS = 64
"""A countersignature promises inclusion at most so many epochs later."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedEpoch:
    """What is posted on chain, and the file that proves it."""

    epoch: EpochRow
    data: bytes


def is_due(repository: Repository, params: PoolParams, ledger: Ledger, *, now: float, chain_time: float) -> bool:
    """Whether an epoch should close: by the clock, when it is full, or at the pool's end once all is decided.

    One at a time, and none that the ledger would refuse at `chain_time`, the time of the block that it would be in.
    """
    epochs = repository.list_epochs()
    waiting = repository.list_unsettled()
    chosen = choose_rows(waiting, ledger)
    if not chosen or any(e.posted_block is None for e in epochs):
        return False
    if epochs and chain_time < (epochs[-1].final_at or 0) - ledger.windows + ledger.epoch_length:
        return False
    if repository.get_fact("ended") and not repository.list_submissions(SubmissionState.SUBMITTED):
        return True
    since = epochs[-1].closed_at if epochs else min(s.decided_at or now for s in waiting)
    is_full = len(waiting) >= params.epoch_leaves or len(chosen) < len(waiting)
    return is_full or now - since >= params.epoch_seconds


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


def close_epoch(repository: Repository, ledger: Ledger, *, now: float) -> ClosedEpoch:
    """Put decided, unsettled submissions into the next epoch and compute its roots.  All epochs before are posted."""
    epochs, number = repository.list_epochs(), get_next_number(repository)
    previous_hash = build_header(epochs[-1], ledger.pool).compute_hash() if epochs else ZERO_HASH
    rows = choose_rows(repository.list_unsettled(), ledger)
    cumulative = _accumulate(repository, rows, ledger.price)
    leaves = [build_work_leaf(row) for row in rows]
    # With the hash of this file anyone can build the header from it.
    data = canonical.to_bytes(
        {
            "epoch": number,
            "pool": ledger.pool,
            "previous_hash": previous_hash,
            "leaves": [asdict(leaf) for leaf in leaves],
            "rewards": {contributor: str(amount) for contributor, amount in cumulative.items()},
        }
    )
    epoch = EpochRow(
        number=number,
        work_root=merkle.MerkleTree([leaf.compute_hash() for leaf in leaves]).root,
        reward_root=_build_reward_tree(ledger, cumulative).root,
        data_hash=canonical.sha256(data),
        leaf_count=len(rows),
        units=sum(row.units for row in rows),
        previous_hash=previous_hash,
        closed_at=now,
        disabled=False,
    )
    repository.add(epoch)
    for contributor, amount in sorted(cumulative.items()):
        repository.add(RewardRow(epoch=number, contributor=contributor, cumulative=str(amount)))
    for row in rows:
        row.epoch = number
    repository.look_at_promises(latest_epoch=number + 1 + SPARE_EPOCHS)
    return ClosedEpoch(epoch=epoch, data=data)


def choose_rows(waiting: Sequence[SubmissionRow], ledger: Ledger) -> list[SubmissionRow]:
    """Those for the next epoch, in their order; what would be over its units waits for another."""
    chosen: list[SubmissionRow] = []
    units = 0
    for row in waiting:
        if units + row.units <= ledger.epoch_units:
            units += row.units
            chosen.append(row)
    return chosen


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


def record_posted(repository: Repository, header: EpochHeader, record: EpochRecord, *, block: int) -> bool:
    """The chain holds the epoch: its submissions are settled.  False for an epoch that was not closed here."""
    epoch = repository.get_epoch(header.epoch)
    if epoch is None or build_header(epoch, header.pool) != header:
        return False
    epoch.posted_block, epoch.header_hash, epoch.final_at = block, record.header_hash, record.final_at
    epoch.reward, epoch.cumulative = str(record.reward), str(record.cumulative)
    repository.mark_settled(header.epoch)
    return True


def record_disabled(repository: Repository, *, number: int) -> None:
    """The arbiter disabled the epoch: nothing can be claimed against it, and its submissions go into a later one."""
    epoch = repository.get_epoch(number)
    if epoch is not None and not epoch.disabled:
        epoch.disabled = True
        repository.release_from_epoch(number)


def get_reward(repository: Repository, ledger: Ledger, *, contributor: Address, epoch: int) -> tuple[int, list[Hash]]:
    """What `contributor` had earned by the end of `epoch`, and the proof; raise ProtocolError("no_reward")."""
    rewards = {Address(r.contributor): int(r.cumulative) for r in repository.list_rewards(epoch)}
    if contributor not in rewards:
        raise ProtocolError("no_reward", f"{contributor} has earned nothing by epoch {epoch}", status=404)
    leaf = _compute_reward_leaf(ledger, contributor, rewards[contributor])
    return rewards[contributor], _build_reward_tree(ledger, rewards).get_proof(leaf)


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


def _accumulate(repository: Repository, rows: Sequence[SubmissionRow], price: int) -> dict[Address, int]:
    """What everybody has earned in the epochs that stand and in `rows`.

    Added up from the submissions, not from an earlier epoch's rewards: an epoch that was posted just after one before
    it was disabled still counts that one's.
    """
    units: dict[str, int] = defaultdict(int, repository.sum_settled_units())
    for row in rows:
        units[row.contributor] += row.units
    return {Address(contributor): count * price for contributor, count in sorted(units.items()) if count}


def _build_reward_tree(ledger: Ledger, cumulative: dict[Address, int]) -> merkle.MerkleTree:
    return merkle.MerkleTree([_compute_reward_leaf(ledger, who, amount) for who, amount in cumulative.items()])


def _compute_reward_leaf(ledger: Ledger, contributor: Address, cumulative: int) -> bytes:
    return merkle.compute_reward_leaf(
        chain=ledger.chain_id, ledger=ledger.address, pool=ledger.pool, contributor=contributor, cumulative=cumulative
    )
