"""Which leaves may be, and which receipts are, two files for one lease."""

from dataclasses import replace

import pytest

from covey.network.equivocations import is_contradiction, list_candidates
from tests.fakes.pool import make_address, make_hash
from tests.unit.covey.network.test_own_receipts import LEAF, RECEIPT

pytestmark = pytest.mark.unit
OTHER = replace(LEAF, receipt_hash=make_hash("other receipt"), work_key=make_hash("other work"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1),
        ({"work_key": LEAF.work_key}, 0),
        ({"task": 6}, 0),
        ({"node": make_address("other")}, 0),
        ({"contributor": make_address("other")}, 0),
        ({"policy_version": 3}, 0),
    ],
)
def test_list_candidates__one_slot_and_two_files__is_named(changes: dict[str, object], expected: int):
    pairs = list(list_candidates([LEAF, replace(OTHER, **changes)]))
    assert pairs == [(LEAF.receipt_hash, OTHER.receipt_hash)][:expected]


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
