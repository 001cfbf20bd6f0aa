"""Two receipts that one node signed for the same lease with different files.

The leaves of epochs name task, node and policy, but not the lease, and no signature. The coordinator reports a decided
submission's receipt, and the evidence of its validators contains the node's signature. All of it is checked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import Hash
from covey.protocol.messages import Receipt


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


def list_candidates(leaves: Iterable[WorkLeaf]) -> Iterator[tuple[Hash, Hash]]:
    """Yield the receipt hashes of each two leaves with one task, node and policy, but different files.

    Their leases may differ. Then they are not an equivocation.
    """
    slots: dict[object, list[WorkLeaf]] = {}
    for leaf in leaves:
        slots.setdefault((leaf.task, leaf.node, leaf.contributor, leaf.policy_version), []).append(leaf)
    for found in slots.values():
        for first, second in combinations(found, 2):
            if first.work_key != second.work_key:
                yield first.receipt_hash, second.receipt_hash


def is_contradiction(first: Receipt, second: Receipt) -> bool:
    """Return whether the court slashes for the two receipts, if both are signed by their node."""
    slots = [(each.pool, each.task, each.lease, each.node, each.policy_version) for each in (first, second)]
    return slots[0] == slots[1] and first.contributor == second.contributor and first.work_key != second.work_key
