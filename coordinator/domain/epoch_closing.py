"""Closes an epoch with two Merkle roots: one over all decided work, and one over everybody's total rewards.

A contributor's reward in one epoch is that of its units (`covey.protocol.prices`), and a validator's is a fee for each
paid verdict (`covey.protocol.verdict_fees`). The total over the pool's life is the sum of these. The object store has
the leaves and the numbers of verdicts, so anyone can compute both roots again.

An epoch may contain any number of submissions, so it closes in steps with small transactions:

1. `begin_epoch` adds its row without roots.
2. `put_leaves` puts submissions into it, one slice at a time.
3. `record_filled` writes the root of its work. No submission can be added after that, and the next epoch may begin.
4. `build_epoch` computes the rewards and the file once the previous epoch is closed. `record_closed` writes them.

After a crash, the next attempt continues after the last committed step. Several processes may try to close the same
epoch, and the first one that records a step wins. Two epochs may be in steps 1 to 3 at the same time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.db.models import EpochRow
from coordinator.db.repository import Repository
from coordinator.domain.settlement import (
    Ledger,
    build_header,
    build_work_leaf,
    get_next_number,
    may_begin,
    read_prices,
)
from covey.errors import TransientError
from covey.protocol import merkle
from covey.protocol.epoch_file import EpochFile
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import ZERO_HASH, Address, Hash
from covey.protocol.prices import compute_reward
from covey.protocol.verdict_fees import count_paid_verdicts

SLICE = 150
"""Maximum number of submissions that one transaction updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedEpoch:
    """Contents of a closed epoch: the header that is posted on chain, and the file that proves it."""

    header: EpochHeader
    data: bytes
    rewards: Mapping[Address, int]
    """Total earnings of each account by the end of the epoch, in the token's smallest unit."""
    verdicts: Mapping[Address, int]
    """Number of verdicts of each validator that the epoch pays."""
    disabled: tuple[int, ...]
    """Numbers of the epochs that were disabled when this one was computed."""


def begin_epoch(repository: Repository, *, now: float) -> int | None:
    """Add a row for the next epoch, which is empty, and return its number.

    Returns None while no epoch may begin, for example because another process has begun one.
    """
    if not may_begin(repository):
        return None
    return repository.require_epoch(get_next_number(repository), closed_at=now).number


def is_closing(epoch: EpochRow) -> bool:
    """Return whether an epoch is not closed yet, and so has no file."""
    return not epoch.data_hash


def put_leaves(repository: Repository, ledger: Ledger, number: int, receipt_hashes: Sequence[str]) -> bool:
    """Put submissions into an epoch, in the order of their tasks. Return False if the epoch no longer accepts any.

    Submissions that are undecided, or in an epoch already, are left out. Those that would exceed the units of one epoch
    wait for a later one.
    """
    epoch = repository.get_epoch(number)
    if epoch is None or epoch.work_root:
        return False
    chosen: list[str] = []
    for receipt_hash, units in repository.list_unsettled(receipt_hashes):
        if epoch.units + units <= ledger.epoch_units:
            epoch.units, epoch.leaf_count = epoch.units + units, epoch.leaf_count + 1
            chosen.append(receipt_hash)
    repository.put_into_epoch(number, chosen)
    return True


def list_leaves(repository: Repository, number: int) -> list[WorkLeaf]:
    """Return the leaves of an epoch, in the order of their tasks."""
    return [build_work_leaf(row) for row in repository.list_settled(number)]


def compute_work_root(leaves: Sequence[WorkLeaf]) -> Hash:
    """Return the root of the Merkle tree of the leaves."""
    return merkle.MerkleTree([leaf.compute_hash() for leaf in leaves]).root


def record_filled(repository: Repository, number: int, leaves: Sequence[WorkLeaf], work_root: Hash) -> bool:
    """Write the root of an epoch's leaves. No submission can be added to the epoch after that.

    Returns False if the epoch has no leaves, or has other leaves by now and must be filled again.
    """
    epoch = repository.get_epoch(number)
    if epoch is None or not leaves:
        return False
    if not epoch.work_root:
        if (epoch.leaf_count, epoch.units) != (len(leaves), sum(leaf.units for leaf in leaves)):
            return False
        epoch.work_root = work_root
    return True


def build_epoch(repository: Repository, ledger: Ledger, number: int) -> ClosedEpoch:
    """Compute the rewards, the roots and the file of a filled epoch.

    Raises TransientError("epoch_before") while the previous epoch is closing, whose hash the header contains. If the
    pool's price has changed, raises it until the previous epoch is posted, because that decides the price.
    """
    disabled = tuple(repository.list_disabled())  # Read first, so that `record_closed` detects epochs disabled later.
    before = repository.get_epoch(number - 1) if number else None
    if before is not None and is_closing(before):
        raise TransientError("epoch_before", f"epoch {number} cannot close before epoch {number - 1}")
    if before is not None and before.final_at is None and len(ledger.prices) > 1:
        raise TransientError("epoch_before", f"epoch {number} has no price before epoch {number - 1} is posted")
    previous_hash = ZERO_HASH
    if before is not None and not before.disabled:  # The chain of headers begins again after a disabled epoch.
        previous_hash = build_header(before, ledger.pool).compute_hash()
    leaves = list_leaves(repository, number)
    verdicts = count_paid_verdicts(repository.list_judged(number), ledger.fees)
    rewards = _sum_rewards(repository, ledger, number, verdicts)
    # Anyone can build the header from this file and its hash.
    file = EpochFile(
        pool=ledger.pool,
        epoch=number,
        previous_hash=previous_hash,
        leaves=leaves,
        rewards=rewards,
        verdicts=verdicts,
    )
    header = file.build_header(chain=ledger.chain_id, ledger=ledger.address)
    return ClosedEpoch(header=header, data=file.to_bytes(), rewards=rewards, verdicts=verdicts, disabled=disabled)


def record_closed(repository: Repository, closed: ClosedEpoch) -> bool:
    """Write the rewards and roots of an epoch, which closes it.

    Returns False if another process has closed it, or if an epoch was disabled since `build_epoch`. In the second case
    the epoch must be computed again.
    """
    header, epoch = closed.header, repository.get_epoch(closed.header.epoch)
    if epoch is None or not is_closing(epoch) or tuple(repository.list_disabled()) != closed.disabled:
        return False
    if epoch.work_root != header.work_root:
        return False
    repository.clear_rewards(header.epoch)
    repository.clear_attestations(header.epoch)
    repository.add_rewards(header.epoch, closed.rewards, closed.verdicts)
    epoch.reward_root, epoch.verdicts = header.reward_root, header.verdicts
    epoch.data_hash, epoch.previous_hash = header.data_hash, header.previous_hash
    return True


def _sum_rewards(
    repository: Repository, ledger: Ledger, number: int, verdicts: Mapping[Address, int]
) -> dict[Address, int]:
    """Return the earnings of every account in the epochs up to this one that are not disabled.

    They are summed over submissions and over `verdicts`, which this epoch pays, and those of earlier epochs. The
    recorded rewards of the previous epoch cannot be used, because they may include an epoch that was disabled later.
    """
    prices = read_prices(repository, ledger.prices, windows=ledger.windows, now=0)
    rewards: Counter[str] = Counter()
    for (contributor, epoch), units in repository.sum_settled_units(until=number).items():
        rewards[contributor] += compute_reward(units, prices.find(epoch))
    for validator, count in (repository.sum_paid_verdicts(before=number) + Counter(verdicts)).items():
        rewards[validator] += ledger.fees.compute_total(count)
    return {Address(contributor): reward for contributor, reward in sorted(rewards.items()) if reward}


def build_reward_tree(ledger: Ledger, rewards: Mapping[Address, int]) -> merkle.MerkleTree:
    """Return the Merkle tree of all contributors' total earnings, whose root is posted on chain."""
    return merkle.build_reward_tree(rewards, chain=ledger.chain_id, ledger=ledger.address, pool=ledger.pool)


def compute_reward_leaf(ledger: Ledger, contributor: Address, cumulative: int) -> bytes:
    """Return the leaf of a contributor's total earnings."""
    return merkle.compute_reward_leaf(
        chain=ledger.chain_id, ledger=ledger.address, pool=ledger.pool, contributor=contributor, cumulative=cumulative
    )
