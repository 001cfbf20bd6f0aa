"""Statistics of an evaluation: means, pass@k and pass^k with intervals, paired differences, and calibration.

All functions are pure and compute in float64. Completions of one question are not independent, so a question is one
cluster. Sources:
- clustered standard errors and paired differences: Miller, "Adding Error Bars to Evals", arXiv 2411.00640, 2024
- pass@k: Chen et al., arXiv 2107.03374, 2021; pass^k: Yao et al., arXiv 2406.12045, 2024
- calibration error: Hendrycks et al., "Deep Anomaly Detection with Outlier Exposure", arXiv 1812.04606, 2019
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
"""Confidence level of all intervals."""
BIN_SIZE = 100
"""Number of answers in one bin of the calibration error, as in Humanity's Last Exam."""
_EXACT_DEGREES = 1000
"""Degrees of freedom up to which a quantile of Student's t is computed exactly. Above, the error is below 1e-6."""

ScoresByQuestion = Sequence[Sequence[float]]
"""Scores of the completions of each question. The inner sequences are not empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A value with its 95 percent interval. Example: Estimate(value=0.41, low=0.35, high=0.47)."""

    value: float
    low: float | None
    """Lower end of the interval. None if there is only one question, which says nothing about others."""
    high: float | None
    """Upper end of the interval. None together with `low`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedDifference:
    """How two models differ on the same questions."""

    difference: Estimate
    """Mean score of the second model minus that of the first."""
    questions: int
    wins: int
    """Number of questions on which the second model has the higher mean score."""
    ties: int
    """Number of questions on which both models have the same mean score."""
    losses: int
    """Number of questions on which the first model has the higher mean score."""


def estimate_mean(scores: ScoresByQuestion, *, low: float = 0.0, high: float = 1.0) -> Estimate:
    """Return the mean of all scores, which lie from `low` to `high`, with its interval clustered by question.

    The standard error is that of Miller (2024), equation 4, times sqrt(C / (C - 1)) for C questions. It is multiplied
    with the quantile of Student's t with C - 1 degrees of freedom, because C may be 30 or less. If all scores are equal
    to `low` or to `high`, the standard error is 0 and says nothing. The interval is then the exact one of Clopper and
    Pearson (1934) for one observation per question. Raises ValueError if there is no score.
    """
    sums = np.array([math.fsum(values) for values in scores], np.float64)
    counts = np.array([len(values) for values in scores], np.float64)
    if not len(sums) or not counts.all():
        raise ValueError("there are no scores, or none for one of the questions")
    clusters, total = len(sums), counts.sum()
    mean = float(sums.sum() / total)
    if clusters == 1:
        return Estimate(value=mean, low=None, high=None)
    width = (high - low) * (1 - ((1 - LEVEL) / 2) ** (1 / clusters))
    if all(score == low for values in scores for score in values):
        return Estimate(value=mean, low=low, high=low + width)
    if all(score == high for values in scores for score in values):
        return Estimate(value=mean, low=high - width, high=high)
    residuals = sums - counts * mean
    error = math.sqrt(clusters / (clusters - 1) * float((residuals**2).sum())) / float(total)
    half = compute_t_quantile(clusters - 1) * error
    return Estimate(value=mean, low=max(low, mean - half), high=min(high, mean + half))


def estimate_pass_at(correct: Sequence[int], samples: int, k: int) -> Estimate:
    """Return the mean pass@k over questions, of which each has `correct[i]` correct ones among `samples` completions.

    pass@k is the probability that at least one of k completions is correct: 1 - C(n - c, k) / C(n, k).
    """
    return estimate_mean([[compute_pass_at(samples, count, k)] for count in correct])


def estimate_pass_all(correct: Sequence[int], samples: int, k: int) -> Estimate:
    """Return the mean pass^k over questions: the probability that all of k completions are correct."""
    return estimate_mean([[compute_pass_all(samples, count, k)] for count in correct])


def compute_pass_at(samples: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of pass@k of one question, 1 - C(n - c, k) / C(n, k) (Chen et al., 2021)."""
    _require_counts(samples, correct, k)
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def compute_pass_all(samples: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of pass^k of one question, C(c, k) / C(n, k) (Yao et al., 2024)."""
    _require_counts(samples, correct, k)
    return math.comb(correct, k) / math.comb(samples, k)


def compare(first: ScoresByQuestion, second: ScoresByQuestion) -> PairedDifference:
    """Compare two models on the same questions, in the same order, by the differences of each question's mean scores.

    Pairing removes the variance that questions have in common (Miller, 2024, section 4). Raises ValueError if the
    numbers of questions differ.
    """
    if len(first) != len(second):
        raise ValueError(f"the models answered {len(first)} and {len(second)} questions")
    gaps = [
        math.fsum(right) / len(right) - math.fsum(left) / len(left) for left, right in zip(first, second, strict=True)
    ]
    wins, losses = sum(gap > 1e-12 for gap in gaps), sum(gap < -1e-12 for gap in gaps)
    return PairedDifference(
        difference=estimate_mean([[gap] for gap in gaps], low=-1.0),
        questions=len(gaps),
        wins=wins,
        ties=len(gaps) - wins - losses,
        losses=losses,
    )


def compute_calibration_error(confidences: Sequence[float], correct: Sequence[bool]) -> float:
    """Return the RMS calibration error: sqrt(sum over bins of size / n x (mean confidence - share correct)^2).

    Answers are sorted by confidence, which is from 0 to 1, and divided into bins of `BIN_SIZE`. The last bin also has
    the rest, and is the only one if there are fewer answers. Raises ValueError if there are no answers.
    """
    return _sum_bins(confidences, correct, kind="stable", left_out=0)


def compute_hle_calibration_error(confidences: Sequence[float], correct: Sequence[bool]) -> float | None:
    """Return what the published script of Humanity's Last Exam computes, which leaves out the last bin.

    It exists for comparison with published numbers. None for fewer than `BIN_SIZE` answers, for which the script fails.
    """
    return None if len(confidences) < BIN_SIZE else _sum_bins(confidences, correct, kind="quicksort", left_out=1)


@functools.lru_cache(maxsize=64)
def compute_t_quantile(degrees: int) -> float:
    """Return the number that Student's t with integer degrees of freedom exceeds in absolute value with 5 percent.

    Up to 1,000 degrees, the distribution function of Abramowitz and Stegun, 26.7.3 and 26.7.4, is inverted by
    bisection. Above, the expansion 26.7.5 is used.
    """
    normal = NormalDist().inv_cdf((1 + LEVEL) / 2)
    if degrees > _EXACT_DEGREES:
        first, second = (normal**3 + normal) / 4, (5 * normal**5 + 16 * normal**3 + 3 * normal) / 96
        return normal + first / degrees + second / degrees**2
    low, high = normal, 13.0  # the quantile for one degree is 12.7
    for _ in range(80):
        middle = (low + high) / 2
        if _compute_t_share(middle, degrees) < LEVEL:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _compute_t_share(t: float, degrees: int) -> float:
    """Return the probability that Student's t is from -t to t."""
    angle = math.atan2(t, math.sqrt(degrees))
    square, is_odd = math.cos(angle) ** 2, degrees % 2
    term = total = math.cos(angle) if is_odd else 1.0
    for number in range(2 + is_odd, degrees - 1, 2):
        term *= square * (number - 1) / number
        total += term
    if not is_odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if degrees > 1 else 0.0))


def _sum_bins(confidences: Sequence[float], correct: Sequence[bool], *, kind: str, left_out: int) -> float:
    if not len(confidences) or len(confidences) != len(correct):
        raise ValueError(f"there are {len(confidences)} confidences for {len(correct)} answers")
    stated, right = np.array(confidences, np.float64), np.array(correct, np.float64)
    order = np.argsort(stated, kind="stable" if kind == "stable" else "quicksort")
    stated, right, n = stated[order], right[order], len(order)
    starts = [BIN_SIZE * i for i in range(max(1, n // BIN_SIZE))]
    bins = list(zip(starts, [*starts[1:], n], strict=True))
    error = 0.0
    for start, end in bins[: len(bins) - left_out]:
        error += (end - start) / n * (stated[start:end].mean() - right[start:end].mean()) ** 2
    return math.sqrt(error)


def _require_counts(samples: int, correct: int, k: int) -> None:
    if not (0 <= correct <= samples and 1 <= k <= samples):
        raise ValueError(f"{correct} of {samples} completions cannot be correct, or k = {k} is not from 1 to {samples}")
