"""Which verdicts are paid, by hand, and which counts a watcher refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.verdict import Decision
from covey.protocol.verdict_fees import JudgedWork, VerdictFees, count_paid_verdicts, find_false_count
from tests.fakes.pool import make_address

pytestmark = pytest.mark.unit
ACCEPT, REJECT, UNKNOWN = int(Decision.ACCEPT), int(Decision.REJECT), int(Decision.UNKNOWN)
A, B, C = sorted((make_address(name) for name in ("a", "b", "c")), key=str.lower)
WORKS = (
    JudgedWork(decision=ACCEPT, verdicts=((B, ACCEPT), (A, ACCEPT), (C, REJECT))),  # C is contradicted
    JudgedWork(decision=UNKNOWN, verdicts=((A, UNKNOWN), (B, ACCEPT))),  # nobody decided
    JudgedWork(decision=REJECT, verdicts=((A, ACCEPT), (A, REJECT), (B, UNKNOWN), (C, REJECT))),
    JudgedWork(decision=ACCEPT, verdicts=((A, ACCEPT), (A, ACCEPT))),  # one fee for two verdicts
)


@pytest.mark.parametrize(
    ("fee", "limit", "counts"),
    [
        (5, 100, {A: 3, B: 1, C: 1}),
        (5, 5, {A: 3, B: 1, C: 1}),
        (5, 4, {A: 2, B: 1, C: 1}),
        (5, 3, {A: 2, B: 1}),  # of the third submission, the lower address
        (5, 1, {A: 1}),
        (5, 0, {}),
        (0, 100, {}),
    ],
)
def test_count_paid_verdicts__agreeing_ones__in_the_order_of_leaves_up_to_the_limit(
    fee: int, limit: int, counts: dict[str, int]
):
    assert count_paid_verdicts(WORKS, VerdictFees(fee=fee, limit=limit)) == counts


OUTCOMES = st.sampled_from((ACCEPT, REJECT, UNKNOWN))
VERDICTS = st.lists(st.tuples(st.sampled_from((A, B, C)), OUTCOMES), max_size=6)


@given(st.lists(st.tuples(OUTCOMES, VERDICTS), max_size=12), st.integers(0, 20))
def test_find_false_count__what_was_counted_by_the_rule__passes(works: list[tuple[int, list]], limit: int):
    fees = VerdictFees(fee=3, limit=limit)
    judged = [JudgedWork(decision=decision, verdicts=verdicts) for decision, verdicts in works]
    counts = count_paid_verdicts(judged, fees)
    assert find_false_count(counts, [decision for decision, _ in works], fees, validators=(A, B, C)) == ""


@pytest.mark.parametrize(
    ("counts", "fees", "text"),
    [
        ({A: 2, B: 1}, VerdictFees(fee=5, limit=2), "counts 3 verdicts, but may pay 2"),
        ({A: 1}, VerdictFees(fee=0, limit=2), "counts 1 verdicts, but may pay 0"),
        ({A: 3}, VerdictFees(fee=5, limit=9), f"counts 3 verdicts of {A}, but has 2 decided submissions"),
        ({C: 1}, VerdictFees(fee=5, limit=9), f"pays a fee to {C}, which is not a validator"),
    ],
)
def test_find_false_count__limit_or_leaves_exceeded_or_a_stranger__is_named(
    counts: dict[str, int], fees: VerdictFees, text: str
):
    assert text in find_false_count(counts, (ACCEPT, UNKNOWN, REJECT), fees, validators=(A, B))
