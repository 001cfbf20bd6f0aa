"""Whether an epoch pays an account's own receipts as they say. It reads no clock and no chain."""

from dataclasses import dataclass

from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import Hash
from covey.protocol.messages import Receipt
from covey.protocol.verdict import Decision, Reason

DIFFERENT = frozenset(("units_differ", "leaf_differs"))
"""Codes of what no verdict explains, so the epoch is false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptFinding:
    """What a contributor should know about a receipt. Example: code="units_differ"."""

    receipt_hash: Hash
    code: str
    text: str
    """What was found, as a sentence with values."""


def check_leaf(receipt: Receipt, leaf: WorkLeaf, *, epoch: int, is_rejected: bool) -> ReceiptFinding | None:
    """Compare a receipt with its leaf in an epoch. None if the leaf pays the units of the receipt, or rightly nothing.

    `is_rejected` says whether a signed verdict of a validator rejects the receipt. Work is paid in full or not at all.
    """
    name = f"receipt {leaf.receipt_hash} in epoch {epoch}"
    wrong = [
        field
        for field in ("work_key", "node", "contributor", "task", "policy_version")
        if getattr(leaf, field) != getattr(receipt, field)
    ]
    if wrong:
        text = f"the leaf of {name} has another {' and another '.join(wrong)} than the receipt"
        return ReceiptFinding(receipt_hash=leaf.receipt_hash, code="leaf_differs", text=text)
    if leaf.units == receipt.units and leaf.outcome != Decision.REJECT:
        return None
    if leaf.units or leaf.outcome == Decision.ACCEPT:
        text = f"{name} is paid for {leaf.units} units, but claims {receipt.units}"
        return ReceiptFinding(receipt_hash=leaf.receipt_hash, code="units_differ", text=text)
    if leaf.outcome == Decision.UNKNOWN:
        text = f"{name} is void and pays nothing: {_name_reason(leaf.reason)}"
        return ReceiptFinding(receipt_hash=leaf.receipt_hash, code="void", text=text)
    if is_rejected:
        return None
    text = f"{name} pays nothing because it is rejected, but no signed verdict that rejects it was shown"
    return ReceiptFinding(receipt_hash=leaf.receipt_hash, code="units_unexplained", text=text)


def _name_reason(reason: int) -> str:
    return Reason(reason).name.lower() if reason in list(Reason) else f"reason {reason}"
