"""Histories of nodes: when a replay rejects, and when running sums are above their limit."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.verification.node_histories import VALIDATORS, Evidence, RunningSums, count_until_seen
from covey.protocol.running_sums import WINDOW, ItemSum, Sums
from covey.protocol.thresholds import Pooled, Thresholds

pytestmark = pytest.mark.unit
LIMITS = Thresholds(logprob=Pooled(mean=1.0, variance=0.01, largest=2.0, items=10**9))
"""Limits of one sum, whose mean is known: honest work has 1.0 per token."""


def make_sums(mean: float) -> Sums:
    return {"logprob": ItemSum(total=1500 * mean, items=1500)}


def make_evidence(*, whole: bool = False, rows: bool = False, mean: float = 1.0) -> Evidence:
    """Make evidence of two equal submissions with three draws each."""
    sums = make_sums(mean)
    return Evidence(
        whole=np.full(2, whole), rows=np.full((2, 3), rows), whole_sums=[sums] * 2, row_sums=[[sums] * 3] * 2
    )


def count(evidence: Evidence, **changes: float) -> tuple[int, bool]:
    rate = changes.get("whole_rate", 0.1)
    return count_until_seen(evidence, LIMITS, whole_rate=rate, most=100, rng=np.random.default_rng(0))


def test_count_until_seen__rows_that_reject__are_found_at_once() -> None:
    assert count(make_evidence(rows=True)) == (1, False)


def test_count_until_seen__whole_replays_alone__are_found_at_the_first_draw() -> None:
    assert count(make_evidence(whole=True), whole_rate=1.0) == (1, False)
    firsts = [
        count_until_seen(make_evidence(whole=True), LIMITS, whole_rate=0.25, most=99, rng=np.random.default_rng(seed))
        for seed in range(400)
    ]
    assert np.mean([first for first, _ in firsts]) == pytest.approx(4, rel=0.15)  # 1 / 0.25


def test_count_until_seen__newcomer__is_replayed_whole_for_its_first_submissions() -> None:
    """A row sum is honest and a whole one is not, so the sums grow in the first submissions alone."""
    evidence = replace(make_evidence(mean=1.3), row_sums=[[make_sums(1.0)] * 3] * 2)
    rng = np.random.default_rng(0)
    assert count_until_seen(evidence, LIMITS, whole_rate=0.0, most=50, rng=rng) == (51, False)
    first, is_above = count_until_seen(evidence, LIMITS, whole_rate=0.0, most=50, rng=rng, newcomer=20)
    assert is_above
    assert first <= 20


def test_count_until_seen__honest_mean__is_never_above_and_a_larger_one_is() -> None:
    assert count(make_evidence()) == (101, False)
    first, is_above = count(make_evidence(mean=1.3))
    assert is_above
    assert 2 <= first < 20


def test_count_until_seen__without_sums__sees_replays_alone() -> None:
    rng = np.random.default_rng(0)
    evidence = make_evidence(mean=1.3)
    assert count_until_seen(evidence, LIMITS, whole_rate=0.1, most=50, rng=rng, has_sums=False) == (51, False)


def test_running_sums__one_hostile_validator__is_not_enough() -> None:
    """A quorum of two leaves the highest validator out, so that what one of three says does not count."""

    class OneValidator:
        def choice(self, *_: object, **__: object) -> np.ndarray:
            return np.array([2])

    sums = RunningSums(LIMITS, OneValidator())  # type: ignore[arg-type]
    assert not any(sums.add(make_sums(9.0), validators=1) for _ in range(50))


def test_running_sums__a_whole_window_below__begins_again() -> None:
    sums = RunningSums(LIMITS, np.random.default_rng(0))
    assert not any(sums.add(make_sums(1.0), validators=VALIDATORS) for _ in range(WINDOW))
    assert sums._by_validator == {}
