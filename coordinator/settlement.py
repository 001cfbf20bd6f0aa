"""Epochs: one root for all decided work, one for what every contributor has earned.  Called by Celery and `api`.

Pay is units x the pool's price and cumulative over the pool's life.  The leaves lie in the store under their hash, so
anyone can recompute both roots.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from coordinator.db import Repository
from coordinator.models import Epoch, Reward, Submission
from covey.errors import ProtocolError
from covey.protocol import canonical, merkle
from covey.protocol.ids import Address, Hash, PoolId, Step, TaskId
from covey.protocol.params import PoolParams
from covey.protocol.receipts import WorkLeaf
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision, Reason

PROMISED_EPOCHS = 64
"""A countersignature promises inclusion at most so many epochs later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where rewards are claimed, and the price."""

    chain_id: int
    address: Address
    pool: PoolId
    price: int
    """Token units for one work unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedEpoch:
    """What is posted on chain, and the file that proves it."""

    epoch: Epoch
    data: bytes


def is_due(repository: Repository, params: PoolParams, *, now: float) -> bool:
    """Whether an epoch should close: by the clock or the number of leaves, and at the pool's end; one at a time."""
    epochs = repository.list_epochs()
    waiting = repository.list_unsettled()
    if not waiting or any(e.posted_block is None for e in epochs):
        return False
    if repository.get_fact("ended"):
        return not repository.list_submissions(SubmissionState.SUBMITTED)
    since = epochs[-1].closed_at if epochs else min(s.decided_at or now for s in waiting)
    return len(waiting) >= params.epoch_leaves or now - since >= params.epoch_seconds


def close_epoch(repository: Repository, ledger: Ledger, *, now: float) -> ClosedEpoch:
    """Put all decided, unsettled submissions into the next epoch and compute its roots."""
    epochs = repository.list_epochs()
    number = epochs[-1].number + 1 if epochs else 0
    rows = repository.list_unsettled()
    standing = [e.number for e in epochs if not e.disabled]
    cumulative = _accumulate(repository, standing[-1:], rows, ledger.price)
    leaves = [build_work_leaf(row) for row in rows]
    data = canonical.to_bytes({"epoch": number, "pool": ledger.pool, "leaves": [asdict(leaf) for leaf in leaves]})
    epoch = Epoch(
        number=number,
        work_root=merkle.MerkleTree([leaf.compute_hash() for leaf in leaves]).root,
        reward_root=_build_reward_tree(ledger, cumulative).root,
        data_hash=canonical.sha256(data),
        leaf_count=len(rows),
        units=sum(row.units for row in rows),
        closed_at=now,
        disabled=False,
    )
    repository.add(epoch)
    for contributor, amount in sorted(cumulative.items()):
        repository.add(Reward(epoch=number, contributor=contributor, cumulative=str(amount)))
    for row in rows:
        row.epoch = number
    return ClosedEpoch(epoch=epoch, data=data)


def record_posted(repository: Repository, *, number: int, block: int) -> None:
    """The chain holds the epoch: its submissions are settled."""
    epoch = repository.get_epoch(number)
    if epoch is not None:
        epoch.posted_block = block
        repository.mark_settled(number)


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


def build_work_leaf(row: Submission) -> WorkLeaf:
    """The leaf of a decided submission."""
    return WorkLeaf(
        receipt_hash=Hash(row.receipt_hash),
        work_key=Hash(row.work_key),
        node=Address(row.node),
        contributor=Address(row.contributor),
        task=TaskId(row.task),
        policy_version=Step(row.policy_version),
        outcome=compute_outcome(row),
        reason=row.reason,
        units=row.units,
        evidence_hash=Hash(row.evidence_hash),
    )


def compute_outcome(row: Submission) -> Decision:
    """Accept, reject, or unknown for what no quorum decided."""
    if row.reason == Reason.UNDECIDED:
        return Decision.UNKNOWN
    return Decision.REJECT if row.reason else Decision.ACCEPT


def _accumulate(
    repository: Repository, before: Sequence[int], rows: Sequence[Submission], price: int
) -> dict[Address, int]:
    """`before`: the newest epoch that was not disabled, if there is one; what it said is added to."""
    earned: dict[Address, int] = defaultdict(int)
    for number in before:
        for reward in repository.list_rewards(number):
            earned[Address(reward.contributor)] = int(reward.cumulative)
    for row in rows:
        if row.units:
            earned[Address(row.contributor)] += row.units * price
    return dict(earned)


def _build_reward_tree(ledger: Ledger, cumulative: dict[Address, int]) -> merkle.MerkleTree:
    return merkle.MerkleTree([_compute_reward_leaf(ledger, who, amount) for who, amount in cumulative.items()])


def _compute_reward_leaf(ledger: Ledger, contributor: Address, cumulative: int) -> bytes:
    return merkle.compute_reward_leaf(
        chain=ledger.chain_id, ledger=ledger.address, pool=ledger.pool, contributor=contributor, cumulative=cumulative
    )
