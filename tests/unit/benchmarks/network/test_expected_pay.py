"""What the benchmark of expected pay counts, worked out by hand."""

from types import SimpleNamespace

import pytest

from benchmarks.measurement import find_misses
from benchmarks.network.expected_pay import build_measurements, sum_paid
from covey.protocol.status import SubmissionState

pytestmark = pytest.mark.unit


def test_sum_paid__rows__are_accepted_work_that_is_new():
    states = [SubmissionState.ACCEPTED, SubmissionState.SETTLED, *SubmissionState]
    rows = [SimpleNamespace(receipt_hash=str(i), state=state, units=10**i) for i, state in enumerate(states)]
    # Rows 0 and 1 are paid, and so are the accepted and the settled one of all states, rows 3 and 6. Row 0 is known.
    assert sum_paid(rows, frozenset({"0"})) == 10 + 10**3 + 10**6


@pytest.mark.parametrize(("earned", "misses"), [(170.0, 0), (169.0, 1), (230.0, 0), (231.0, 1)])
def test_build_measurements__ratio__must_be_within_15_percent(earned: float, misses: int):
    measurements = build_measurements(200.0, earned, tasks=7, load=1.5)
    (ratio,) = [each for each in measurements if each.name == "earned_over_expected"]
    assert (ratio.value, ratio.n) == (earned / 200, 7)
    assert len(find_misses(measurements)) == misses
