"""Two receipts that one node signed for the same lease with different files.

The leaves of epochs name task, node and policy, but not the lease, and no signature. The coordinator reports a decided
submission's receipt, and the evidence of its validators contains the node's signature. All of it is checked.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import Hash, hash_from_bytes, hash_to_bytes
from covey.protocol.messages import Receipt

MAX_CANDIDATES = 50
"""Maximum number of pairs of leaves of which the coordinator is asked whether they are an equivocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivocation:
    """Two receipts that contradict each other. A signature is empty if it was published nowhere."""

    first: Receipt
    first_signature: str
    second: Receipt
    second_signature: str

    @property
    def is_provable(self) -> bool:
        """Whether both signatures are known, so that the court can slash."""
        return bool(self.first_signature and self.second_signature)


@dataclass(frozen=True, slots=True)
class PackedLeaves:
    """Receipt hashes and slots of an epoch's leaves, 40 bytes for each. Objects would take a hundred times as much."""

    receipts: NDArray[np.uint64]
    """Receipt hashes as four words each, of shape (leaves, 4)."""
    slots: NDArray[np.uint64]
    """First word of the hash of task, node, contributor and policy, of shape (leaves,)."""

    @classmethod
    def build(cls, leaves: Sequence[WorkLeaf]) -> "PackedLeaves":
        """Pack the leaves of one epoch."""
        hashes = b"".join(hash_to_bytes(leaf.receipt_hash) for leaf in leaves)
        slots = b"".join(
            hashlib.sha256(f"{leaf.task} {leaf.node} {leaf.contributor} {leaf.policy_version}".encode()).digest()[:8]
            for leaf in leaves
        )
        return cls(np.frombuffer(hashes, np.uint64).reshape(-1, 4), np.frombuffer(slots, np.uint64))

    def find_doubled(self, other: "PackedLeaves") -> list[Hash]:
        """Return the receipts that both have."""
        _, mine, theirs = np.intersect1d(self.receipts[:, 0], other.receipts[:, 0], return_indices=True)
        return [
            self.name(i) for i, j in zip(mine, theirs, strict=True) if (self.receipts[i] == other.receipts[j]).all()
        ]

    def name(self, index: int) -> Hash:
        """Return the receipt hash of a leaf."""
        return hash_from_bytes(self.receipts[index].tobytes())


def list_candidates(new: PackedLeaves, earlier: Sequence[PackedLeaves]) -> Iterator[tuple[Hash, Hash]]:
    """Yield the receipt hashes of each two leaves with one task, node and policy, of which one is in `new`.

    Their leases may differ, and their files may be the same. Then they are not an equivocation.
    """
    for other in (*earlier, new):
        for slot in np.intersect1d(new.slots, other.slots):
            mine, theirs = (np.flatnonzero(each.slots == slot).tolist() for each in (new, other))
            pairs = combinations(mine, 2) if other is new else product(theirs, mine)
            yield from ((other.name(i), new.name(j)) for i, j in pairs)


def is_contradiction(first: Receipt, second: Receipt) -> bool:
    """Return whether the court slashes for the two receipts, if both are signed by their node."""
    slots = [(each.pool, each.task, each.lease, each.node, each.policy_version) for each in (first, second)]
    return slots[0] == slots[1] and first.contributor == second.contributor and first.work_key != second.work_key
