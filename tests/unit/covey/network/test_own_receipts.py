"""A receipt of 40 units, and what leaves of it say."""

from dataclasses import replace

import pytest

from covey.network.own_receipts import check_leaf
from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import ZERO_HASH
from covey.protocol.messages import Receipt
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit
NODE, WHO = make_address("node"), make_address("contributor")
RECEIPT = Receipt(
    pool=1, task=5, lease=6, node=NODE, contributor=WHO, policy_version=2, work_key=make_hash("work"), groups=1,
    units=40, deadline=1000,
)  # fmt: skip
LEAF = WorkLeaf(
    receipt_hash=make_hash("receipt"), work_key=RECEIPT.work_key, node=NODE, contributor=WHO, task=5, policy_version=2,
    signed_at=900, outcome=1, reason=0, units=40, evidence_hash=ZERO_HASH,
)  # fmt: skip
UNDECIDED = int(Reason.UNDECIDED)


@pytest.mark.parametrize(
    ("changes", "is_rejected", "code"),
    [
        ({}, False, None),
        ({"units": 39}, False, "units_differ"),
        ({"units": 41}, False, "units_differ"),
        ({"units": 0}, False, "units_differ"),
        ({"units": 0, "outcome": Decision.REJECT, "reason": 5}, True, None),
        ({"units": 0, "outcome": Decision.REJECT, "reason": 5}, False, "units_unexplained"),
        ({"units": 39, "outcome": Decision.REJECT, "reason": 5}, True, "units_differ"),
        ({"units": 40, "outcome": Decision.REJECT, "reason": 5}, True, "units_differ"),
        ({"units": 0, "outcome": Decision.UNKNOWN, "reason": UNDECIDED}, False, "void"),
        ({"units": 0, "outcome": Decision.UNKNOWN, "reason": 255}, False, "void"),
        ({"units": 12, "outcome": Decision.UNKNOWN, "reason": UNDECIDED}, True, "units_differ"),
        ({"work_key": make_hash("other")}, False, "leaf_differs"),
        ({"contributor": make_address("thief")}, False, "leaf_differs"),
        ({"node": make_address("thief")}, False, "leaf_differs"),
        ({"task": 6}, False, "leaf_differs"),
        ({"policy_version": 3}, False, "leaf_differs"),
    ],
)
def test_check_leaf__pays_in_full_or_not_at_all_with_a_reason(
    changes: dict[str, object], is_rejected: bool, code: str | None
):
    found = check_leaf(RECEIPT, replace(LEAF, **changes), epoch=3, is_rejected=is_rejected)
    assert (found and found.code) == code
    assert found is None or (found.receipt_hash == LEAF.receipt_hash and "in epoch 3" in found.text)
