"""Leaves of epochs with their proofs, which a viewer checks against the root on chain."""

import asyncio
from collections import OrderedDict

from coordinator.db.repository import Repository
from coordinator.domain.settlement import build_work_leaf
from coordinator.pages.context import PagesContext
from covey.errors import ProtocolError
from covey.protocol.api.pages import LeafView
from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import Hash
from covey.protocol.merkle import MerkleTree

MAX_TREES = 4
"""Number of epochs whose trees are kept. A tree of 10,000 leaves takes about 0.2 s and 3 MB."""


class WorkTrees:
    """Example: `await trees.find(3, receipt_hash)`."""

    def __init__(self, ctx: PagesContext) -> None:
        self._ctx = ctx
        self._building = asyncio.Lock()
        self._kept: OrderedDict[str, MerkleTree] = OrderedDict()
        """Trees by their roots, the one that nobody has asked for longest first."""

    async def find(self, epoch: int, receipt_hash: Hash) -> LeafView:
        """Return a leaf with its proof and the header of its epoch.

        Raises ProtocolError("no_leaf") if the epoch has no such leaf, or if it is not closed.
        """

        def read(rows: Repository) -> tuple[WorkLeaf, str, str]:
            row, closed = rows.get_submission(receipt_hash), rows.get_epoch(epoch)
            if row is None or row.epoch != epoch or closed is None or not closed.data_hash:
                raise ProtocolError("no_leaf", f"epoch {epoch} has no leaf of {receipt_hash}", status=404)
            return build_work_leaf(row), closed.work_root, closed.header_hash or ""

        leaf, root, header_hash = await self._ctx.database.query(read)
        tree = await self._load(epoch, root)
        fields = {name: str(getattr(leaf, name)) for name in WorkLeaf.__slots__}
        proof = tuple(tree.get_proof(leaf.compute_hash()))
        return LeafView(epoch=epoch, fields=fields, proof=proof, work_root=Hash(root), header_hash=header_hash or None)

    async def _load(self, epoch: int, root: str) -> MerkleTree:
        async with self._building:  # One at a time, however many strangers ask for however many epochs.
            if root not in self._kept:
                rows = await self._ctx.database.query(lambda rows: [*map(build_work_leaf, rows.list_settled(epoch))])
                tree = await asyncio.to_thread(lambda: MerkleTree([leaf.compute_hash() for leaf in rows]))
                if tree.root != root:
                    raise ProtocolError("no_leaf", f"epoch {epoch} is being changed", status=409)
                self._kept[root] = tree
            self._kept.move_to_end(root)
            while len(self._kept) > MAX_TREES:
                self._kept.popitem(last=False)
            return self._kept[root]
