"""Results of a complete log, against numbers worked out by hand."""

import pytest

from covey.evaluation.evaluation_scores import compute_results, list_ks
from covey.evaluation.sample_log import SampleRecord
from covey.evaluation.statistics import estimate_mean, estimate_pass_all, estimate_pass_at

pytestmark = pytest.mark.unit

GROUPS = [{"level": "1", "same": "x"}, {"level": "2", "same": "x"}, {"level": "1", "same": "x"}]
SCORES = ([[1, 1, 0], [0, 0, 0], [1, 0, 0]], [[1, 1, 1], [0, 0, 1], [0, 0, 0]])


def build_records(*, confidence: float | None = None) -> dict[tuple[int, int, int], SampleRecord]:
    records = {}
    for i, by_question in enumerate(SCORES):
        for j, by_sample in enumerate(by_question):
            for k, score in enumerate(by_sample):
                limit = "sandbox_cpu" if (i, j, k) == (0, 1, 2) else ""
                records[i, j, k] = SampleRecord(
                    model=i, question=j, sample=k, tokens=10 * j + k, finished=k < 2, answered=k > 0,
                    score=float(score), limit=limit, confidence=confidence if k else None,
                )  # fmt: skip
    return records


def test_compute_results__two_models__have_the_numbers_of_their_completions() -> None:
    results = compute_results(
        build_records(), ["a", "b"], samples=3, groups=GROUPS, skipped={"judge": 2}, has_confidence=False
    )
    first, second = results.models
    assert (results.questions, results.samples, results.skipped) == (3, 3, {"judge": 2})
    assert first.mean == estimate_mean(SCORES[0])
    assert first.mean.value == pytest.approx(3 / 9)
    assert first.pass_at == {k: estimate_pass_at([2, 0, 1], 3, k) for k in (1, 2, 3)}
    assert first.pass_at[2].value == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert second.pass_all == {k: estimate_pass_all([3, 1, 0], 3, k) for k in (1, 2, 3)}
    assert second.pass_all[3].value == pytest.approx(1 / 3)
    assert (first.finished.value, first.answered.value) == pytest.approx((2 / 3, 2 / 3))
    assert (first.tokens.mean, first.tokens.median, first.tokens.longest) == (11.0, 11.0, 22)
    assert (first.limits, second.limits) == ({"sandbox_cpu": 1}, {})
    assert list(first.groups) == ["level"]  # the other label groups nothing
    assert (first.groups["level"]["1"].questions, first.groups["level"]["1"].mean.value) == (2, pytest.approx(0.5))
    assert first.groups["level"]["2"].mean.low is None  # one question
    assert first.calibration is None
    (pair,) = results.comparisons
    assert (pair.first, pair.second) == ("a", "b")
    assert (pair.result.wins, pair.result.ties, pair.result.losses) == (2, 0, 1)
    assert pair.result.difference.value == pytest.approx(4 / 9 - 3 / 9)
    assert results.to_json()["models"][1]["mean"]["value"] == pytest.approx(4 / 9)


def test_compute_results__confidences__are_calibrated_and_missing_ones_are_certain() -> None:
    results = compute_results(
        build_records(confidence=0.5), ["a", "b"], samples=3, groups=GROUPS, skipped={}, has_confidence=True
    )
    score = results.models[0].calibration
    assert score is not None
    assert (score.answers, score.without_confidence, score.hle_compatible) == (9, 3, None)
    assert score.error == pytest.approx((3 * 1.0 + 6 * 0.5) / 9 - 3 / 9)  # one bin


def test_compute_results__a_missing_completion__is_an_error() -> None:
    records = build_records()
    del records[1, 2, 2]
    with pytest.raises(KeyError):
        compute_results(records, ["a", "b"], samples=3, groups=GROUPS, skipped={}, has_confidence=False)


def test_list_ks__powers_of_two__and_all() -> None:
    assert [list_ks(n) for n in (1, 2, 3, 8, 32, 33)] == [
        [1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32, 33]
    ]  # fmt: skip
