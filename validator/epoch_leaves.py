"""Compares the leaves of an epoch with this validator's own verdicts, before it signs the header of the epoch.

A leaf that pays against an own verdict is true only if a quorum of other validators has signed that it is accepted.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from covey.errors import ProtocolError
from covey.protocol import eip712
from covey.protocol.api.validator import SignedVerdicts
from covey.protocol.eip712 import Domain
from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import Address, Hash
from covey.protocol.verdict import Decision, Severity
from validator.own_verdicts import OwnVerdict


def find_contested(leaves: Iterable[WorkLeaf], own: Mapping[Hash, OwnVerdict]) -> list[WorkLeaf]:
    """Return the leaves that pay for work which this validator rejected hard, or pay more than it counted.

    Raises ProtocolError("false_leaf") if a leaf pays for work that is not accepted, or contradicts the receipt that
    this validator has judged. No quorum can make such a leaf true.
    """
    contested: list[WorkLeaf] = []
    for leaf in leaves:
        if leaf.units and leaf.outcome != Decision.ACCEPT:
            raise _build_false(leaf, f"pays {leaf.units} units for work that is not accepted")
        verdict = own.get(leaf.receipt_hash)
        if verdict is None:
            continue
        if (leaf.work_key, leaf.node, leaf.contributor) != (verdict.work_key, verdict.node, verdict.contributor):
            raise _build_false(leaf, "names another file, node or contributor than the receipt that was judged")
        is_rejected_hard = verdict.outcome == Decision.REJECT and verdict.severity == Severity.HARD
        has_more_units = verdict.outcome == Decision.ACCEPT and leaf.units > verdict.units
        if has_more_units or (is_rejected_hard and leaf.outcome == Decision.ACCEPT):
            contested.append(leaf)
    return contested


def require_supported(
    contested: Iterable[WorkLeaf], shown: SignedVerdicts, *, domain: Domain, others: Collection[Address], quorum: int
) -> None:
    """Raise ProtocolError("false_leaf") unless `quorum` validators among `others` have accepted each leaf as it is.

    `shown` are the coordinator's copies of the verdicts. Those without a valid signature do not count.
    """
    signers: defaultdict[WorkLeaf, set[Address]] = defaultdict(set)
    by_receipt = {leaf.receipt_hash: leaf for leaf in contested}
    for body, signature in zip(shown.verdicts, shown.signatures, strict=False):
        verdict, leaf = body.to_message(), by_receipt.get(Hash(body.receipt_hash))
        if leaf is None or verdict.validator not in others or verdict.work_key != leaf.work_key:
            continue
        if verdict.outcome != Decision.ACCEPT or verdict.units != leaf.units:
            continue
        try:
            eip712.require_signer(verdict, domain, signature, verdict.validator)
        except ProtocolError:
            continue
        signers[leaf].add(verdict.validator)
    for leaf in by_receipt.values():
        if len(signers[leaf]) < quorum:
            raise _build_false(
                leaf,
                f"pays {leaf.units} units against the verdict of this validator, and {len(signers[leaf])} of"
                f" {quorum} other validators have signed that",
            )


def _build_false(leaf: WorkLeaf, what: str) -> ProtocolError:
    return ProtocolError("false_leaf", f"the leaf of receipt {leaf.receipt_hash} {what}")
