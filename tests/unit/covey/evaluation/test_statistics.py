"""Means, pass@k, pass^k, intervals, paired differences and calibration, against hand-made numbers and simulations."""

import os
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.evaluation import statistics
from covey.evaluation.statistics import (
    Estimate,
    compare,
    compute_calibration_error,
    compute_hle_calibration_error,
    compute_pass_all,
    compute_pass_at,
    compute_t_quantile,
    estimate_mean,
    estimate_pass_all,
    estimate_pass_at,
)

pytestmark = pytest.mark.unit

IS_FULL = os.environ.get("COVEY_FULL") == "1"
TRIALS = 10_000 if IS_FULL else 1500
SHAPES = [(1.0, 1.0), (0.5, 0.5), (2.0, 5.0), (8.0, 2.0), (0.3, 0.9)]
"""Parameters of beta distributions of how easy questions are."""


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_rates__of_any_counts__are_shares_of_all_choices(case: tuple[int, int, int]) -> None:
    samples, correct, k = case
    choices = list(combinations([True] * correct + [False] * (samples - correct), k))
    assert compute_pass_at(samples, correct, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)
    assert compute_pass_all(samples, correct, k) == pytest.approx(sum(map(all, choices)) / len(choices), abs=1e-12)


def test_pass_rates__by_hand__and_their_means() -> None:
    assert compute_pass_at(5, 2, 2) == pytest.approx(0.7)  # 1 - 3 / 10
    assert compute_pass_all(5, 2, 2) == pytest.approx(0.1)  # 1 / 10
    assert compute_pass_at(200, 1, 100) == pytest.approx(0.5)
    assert estimate_pass_at([0, 2, 5], 5, 2).value == pytest.approx((0 + 0.7 + 1) / 3)
    assert estimate_pass_all([0, 2, 5], 5, 2).value == pytest.approx((0 + 0.1 + 1) / 3)
    with pytest.raises(ValueError, match="k = 6"):
        compute_pass_at(5, 2, 6)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.70620), (2, 4.30265), (3, 3.18245), (4, 2.77645), (10, 2.22814), (29, 2.04523), (120, 1.97993)],
)
def test_t_quantile__is_that_of_the_tables(degrees: int, quantile: float) -> None:
    assert compute_t_quantile(degrees) == pytest.approx(quantile, abs=6e-6)


def test_t_quantile__above_a_thousand__goes_on_smoothly() -> None:
    exact, expanded = compute_t_quantile(1000), compute_t_quantile(1001)
    assert 0 < exact - expanded < 3e-6
    assert compute_t_quantile(10_000_000) == pytest.approx(1.959964, abs=1e-6)


def test_estimate_mean__two_completions_of_three_questions__by_hand() -> None:
    found = estimate_mean([[1, 1], [0, 0], [1, 0]], low=-5, high=5)
    half = 4.302653 * np.sqrt(3 / 2 * 2) / 6  # residuals of the questions are 1, -1 and 0
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-6)
    assert estimate_mean([[1, 1], [0, 0], [1, 0]]) == Estimate(value=0.5, low=0.0, high=1.0)  # no share is outside


def test_estimate_mean__questions_with_different_counts__weighs_completions() -> None:
    found = estimate_mean([[1, 1, 1], [0]], low=-10, high=10)
    assert found.value == 0.75
    assert found.high == pytest.approx(0.75 + 12.70620 * np.sqrt(2 * (0.75**2 + 0.75**2)) / 4, abs=1e-5)


def test_estimate_mean__equal_scores__have_the_exact_interval() -> None:
    found = estimate_mean([[0.0, 0.0]] * 10)
    assert (found.low, found.high) == pytest.approx((0.0, 1 - 0.025**0.1))
    found = estimate_mean([[1.0]] * 10)
    assert (found.low, found.high) == pytest.approx((0.025**0.1, 1.0))
    assert estimate_mean([[1.0, 0.0]]) == Estimate(value=0.5, low=None, high=None)
    for scores in ([], [[1.0], []]):
        with pytest.raises(ValueError, match="no scores"):
            estimate_mean(scores)


@pytest.mark.parametrize("shape", SHAPES if IS_FULL else SHAPES[:2])
def test_intervals__of_30_questions_with_10_completions__cover_95_percent(shape: tuple[float, float]) -> None:
    rng = np.random.default_rng(7)
    truth, covered, naively_covered = shape[0] / sum(shape), 0, 0
    for _ in range(TRIALS):
        ease = rng.beta(*shape, 30)
        scores = (rng.random((30, 10)) < ease[:, None]).astype(float)
        found = estimate_mean(scores.tolist())
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
        naively_covered += abs(scores.mean() - truth) <= 1.96 * np.sqrt(scores.mean() * (1 - scores.mean()) / 300)
    assert 0.93 <= covered / TRIALS <= 0.97
    assert naively_covered / TRIALS < 0.9  # as if 300 completions were 300 questions


@pytest.mark.parametrize("gain", [0.0, 0.15])
def test_paired_intervals__of_30_questions_with_10_completions__cover_95_percent(gain: float) -> None:
    rng = np.random.default_rng(8)
    covered, widths = 0, []
    for _ in range(TRIALS):
        ease = rng.beta(2, 2, 30)
        first = (rng.random((30, 10)) < ease[:, None]).astype(float)
        second = (rng.random((30, 10)) < (ease + gain * (1 - ease))[:, None]).astype(float)
        found = compare(first.tolist(), second.tolist()).difference
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= gain * 0.5 <= found.high
        widths.append(found.high - found.low)
    assert 0.93 <= covered / TRIALS <= 0.97
    assert np.mean(widths) < 0.2  # without pairing it is 0.28, because questions differ in how easy they are


def test_compare__three_questions__by_hand() -> None:
    found = compare([[1, 0], [1, 1], [0, 0]], [[1, 1], [1, 0], [0, 0]])
    assert (found.questions, found.wins, found.ties, found.losses) == (3, 1, 1, 1)
    assert found.difference.value == 0.0
    half = 4.302653 * np.sqrt(3 / 2 * 0.5) / 3
    assert found.difference.high == pytest.approx(min(1, half), abs=1e-6)
    same = compare([[0.3] * 10], [[0.1] * 10])
    assert (same.difference.low, same.losses) == (None, 1)
    with pytest.raises(ValueError, match="2 and 1 questions"):
        compare([[1], [1]], [[1]])


def test_calibration__two_bins_of_a_hundred__by_hand() -> None:
    confidences = [0.8, 0.6] * 100
    correct = [answer for i in range(100) for answer in (i < 70, i < 40)]
    assert compute_calibration_error(confidences, correct) == pytest.approx(np.sqrt(0.5 * 0.2**2 + 0.5 * 0.1**2))
    assert compute_hle_calibration_error(confidences, correct) == pytest.approx(np.sqrt(0.5 * 0.2**2))


def test_calibration__bins_of_two__the_last_one_has_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BIN_SIZE", 2)
    confidences, correct = [0.9, 0.1, 0.8, 0.3, 0.6], [True, False, False, True, True]
    # Sorted: 0.1 wrong, 0.3 right | 0.6 right, 0.8 wrong, 0.9 right. The bins differ by 0.3 and by 0.1.
    assert compute_calibration_error(confidences, correct) == pytest.approx(np.sqrt(2 / 5 * 0.09 + 3 / 5 * 0.01))
    assert compute_hle_calibration_error(confidences, correct) == pytest.approx(np.sqrt(2 / 5 * 0.09))


def test_calibration__fewer_answers_than_a_bin__are_one_bin() -> None:
    assert compute_calibration_error([0.5, 1.0], [True, False]) == pytest.approx(0.25)
    assert compute_hle_calibration_error([0.5] * 99, [True] * 99) is None
    assert compute_hle_calibration_error([0.5] * 199, [True] * 199) == 0.0  # the only bin is left out
    with pytest.raises(ValueError, match="0 confidences"):
        compute_calibration_error([], [])
