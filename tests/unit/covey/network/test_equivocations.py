"""Which leaves may be, and which receipts are, two files for one lease."""

from dataclasses import replace

import pytest

from covey.network.equivocations import PackedLeaves, is_contradiction, list_candidates
from tests.fakes.pool import make_address, make_hash
from tests.unit.covey.network.test_own_receipts import LEAF, RECEIPT

pytestmark = pytest.mark.unit
OTHER = replace(LEAF, receipt_hash=make_hash("other receipt"), work_key=make_hash("other work"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1),
        ({"task": 6}, 0),
        ({"node": make_address("other")}, 0),
        ({"contributor": make_address("other")}, 0),
        ({"policy_version": 3}, 0),
    ],
)
def test_list_candidates__one_slot__is_named_within_an_epoch_and_across(changes: dict[str, object], expected: int):
    leaves = [LEAF, replace(OTHER, **changes)]
    both = [(LEAF.receipt_hash, OTHER.receipt_hash)][:expected]
    assert list(list_candidates(PackedLeaves.build(leaves), [])) == both
    earlier, new = (PackedLeaves.build([leaf]) for leaf in leaves)
    assert list(list_candidates(new, [earlier])) == both


def test_packed_leaves__thousands__take_forty_bytes_each_and_find_what_is_doubled():
    leaves = [replace(LEAF, task=task, receipt_hash=make_hash(str(task))) for task in range(2000)]
    packed, other = PackedLeaves.build(leaves), PackedLeaves.build([*leaves[1990:], OTHER])
    assert packed.receipts.nbytes + packed.slots.nbytes == 40 * 2000
    assert sorted(packed.find_doubled(other)) == sorted(leaf.receipt_hash for leaf in leaves[1990:])
    assert PackedLeaves.build([]).find_doubled(packed) == []
    assert list(list_candidates(packed, [PackedLeaves.build([])])) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"units": 41}, True),
        ({"work_key": RECEIPT.work_key}, False),
        ({"lease": 7}, False),
        ({"task": 6}, False),
        ({"pool": 2}, False),
        ({"node": make_address("other")}, False),
        ({"contributor": make_address("other")}, False),
        ({"policy_version": 3}, False),
    ],
)
def test_is_contradiction__as_the_court__needs_one_lease_and_two_files(changes: dict[str, object], expected: bool):
    other = replace(RECEIPT, **({"work_key": make_hash("other")} | changes))
    assert is_contradiction(RECEIPT, other) is expected
