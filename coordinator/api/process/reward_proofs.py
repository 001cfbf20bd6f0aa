"""Merkle proofs of rewards. An epoch's tree is built for its first viewer, and cached while it is recently used.

Building a large tree takes a noticeable part of a second, so only one is built at a time.
"""

import asyncio
from typing import NamedTuple

from coordinator.context import Context
from coordinator.db.repository import Repository
from coordinator.domain import epoch_closing
from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Address, Hash
from covey.protocol.merkle import MerkleTree

MAX_TREES = 8
"""Maximum number of epochs whose trees are cached."""


class _Rewards(NamedTuple):
    amounts: dict[Address, int]
    tree: MerkleTree


class RewardProofs:
    """A cache of reward trees. Example: `amount, proof = await RewardProofs(ctx).find(3, contributor)`."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._building = asyncio.Lock()
        self._kept: dict[Hash, asyncio.Task[_Rewards]] = {}
        """Trees by their root, the least recently used first."""

    async def find(self, epoch: int, contributor: Address) -> tuple[int, list[Hash]]:
        """Return a contributor's total earnings by the end of an epoch, in the token's smallest unit, and their proof.

        Raises ProtocolError("unknown_epoch") if the epoch is not posted, ProtocolError("epoch_disabled") if it is
        disabled, and ProtocolError("no_reward") if the contributor has earned nothing.
        """
        root = await self._ctx.database.query(lambda rows: _require_root(rows, epoch))
        rewards = await self._load(epoch, root)
        amount = rewards.amounts.get(contributor)
        if amount is None:
            raise ProtocolError("no_reward", f"{contributor} has earned nothing by epoch {epoch}", status=404)
        return amount, rewards.tree.get_proof(epoch_closing.compute_reward_leaf(self._ctx.ledger, contributor, amount))

    async def _load(self, epoch: int, root: Hash) -> _Rewards:
        task = self._kept.pop(root, None)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._build(epoch, root))
        self._kept[root] = task
        while len(self._kept) > MAX_TREES:
            del self._kept[next(iter(self._kept))]
        return await asyncio.shield(task)

    async def _build(self, epoch: int, root: Hash) -> _Rewards:
        async with self._building:  # One at a time, whatever number of epochs strangers ask for.
            found = await self._ctx.database.query(lambda rows: rows.list_rewards(epoch))
            amounts = {Address(who): amount for who, amount in found.items()}
            tree = await asyncio.to_thread(epoch_closing.build_reward_tree, self._ctx.ledger, amounts)
        if tree.root != root:
            raise TransientError("rewards_changed", f"the rewards of epoch {epoch} changed during the request")
        return _Rewards(amounts, tree)


def _require_root(rows: Repository, epoch: int) -> Hash:
    row = rows.get_epoch(epoch)
    if row is None or row.posted_block is None:
        raise ProtocolError("unknown_epoch", f"epoch {epoch} is not posted", status=404)
    if row.disabled:
        raise ProtocolError("epoch_disabled", f"epoch {epoch} was disabled; claim against a later one", status=409)
    return Hash(row.reward_root)
