"""What the completions of an evaluation say about its models: scores with intervals, and paired comparisons.

Main names: `compute_results`, `EvaluationResults`. Every number is a function of the log, so a resumed evaluation
reports the same ones.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from covey.evaluation.sample_log import SampleKey, SampleRecord
from covey.evaluation.statistics import (
    Estimate,
    PairedDifference,
    compare,
    compute_calibration_error,
    compute_hle_calibration_error,
    estimate_mean,
    estimate_pass_all,
    estimate_pass_at,
)

NO_CONFIDENCE = 1.0
"""Confidence of a reply of the exam that states none, as in the published script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthSummary:
    """Lengths of completions in tokens."""

    mean: float
    median: float
    p90: float
    """Length that nine of ten completions do not exceed."""
    longest: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationScore:
    """How well stated confidences agree with the share of correct answers."""

    error: float
    """RMS calibration error over bins of 100 answers, from 0 to 1."""
    hle_compatible: float | None
    """The same as the published script computes it, without the last bin. None for fewer than 100 answers."""
    answers: int
    without_confidence: int
    """Number of answers that state no confidence, which count as certain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupScore:
    """Score of the questions with one label."""

    questions: int
    mean: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelScores:
    """Results of one model. Every estimate has an interval clustered by question."""

    label: str
    mean: Estimate
    """avg@k: mean score of all completions."""
    pass_at: Mapping[int, Estimate]
    """Probability that at least one of k completions is correct, by k."""
    pass_all: Mapping[int, Estimate]
    """Probability that all of k completions are correct, by k."""
    finished: Estimate
    """Share of completions that ended before the token limit."""
    answered: Estimate
    """Share of completions from which an answer could be extracted."""
    tokens: LengthSummary
    limits: Mapping[str, int]
    """Number of completions that count as wrong without a comparison, by reason."""
    groups: Mapping[str, Mapping[str, GroupScore]]
    """Scores by label and its value, for example `groups["level"]["5"]`."""
    calibration: CalibrationScore | None
    """Calibration of stated confidences. None if replies do not state any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPair:
    """A paired comparison of two models."""

    first: str
    second: str
    result: PairedDifference


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationResults:
    """All results of an evaluation."""

    questions: int
    samples: int
    """Number of completions of each question."""
    skipped: Mapping[str, int]
    """Number of rows that were not asked, by reason."""
    models: Sequence[ModelScores]
    comparisons: Sequence[ModelPair]

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        return asdict(self)


def compute_results(
    records: Mapping[SampleKey, SampleRecord],
    labels: Sequence[str],
    *,
    samples: int,
    groups: Sequence[Mapping[str, str]],
    skipped: Mapping[str, int],
    has_confidence: bool,
) -> EvaluationResults:
    """Return the results of a complete log.

    `labels` are the names of the models, and `groups` the labels of each question. Raises KeyError if a completion is
    missing.
    """
    tables = [
        [[records[model, question, sample] for sample in range(samples)] for question in range(len(groups))]
        for model in range(len(labels))
    ]
    scores = [[[record.score for record in row] for row in table] for table in tables]
    return EvaluationResults(
        questions=len(groups),
        samples=samples,
        skipped=skipped,
        models=[
            _score_model(label, table, groups, has_confidence=has_confidence)
            for label, table in zip(labels, tables, strict=True)
        ],
        comparisons=[
            ModelPair(first=labels[i], second=labels[j], result=compare(scores[i], scores[j]))
            for i, j in combinations(range(len(labels)), 2)
        ],
    )


def list_ks(samples: int) -> list[int]:
    """Return the numbers of completions for which pass@k is reported: powers of two, and all."""
    powers = [1 << i for i in range(samples.bit_length())]
    return sorted({*(k for k in powers if k <= samples), samples})


def _score_model(
    label: str,
    table: Sequence[Sequence[SampleRecord]],
    groups: Sequence[Mapping[str, str]],
    *,
    has_confidence: bool,
) -> ModelScores:
    samples, records = len(table[0]), [record for row in table for record in row]
    scores = [[record.score for record in row] for row in table]
    correct = [sum(score > 0.5 for score in row) for row in scores]
    lengths = np.array([record.tokens for record in records], np.float64)
    by_label: dict[str, dict[str, list[int]]] = {}
    for number, labels in enumerate(groups):
        for name, value in labels.items():
            by_label.setdefault(name, {}).setdefault(value, []).append(number)
    return ModelScores(
        label=label,
        mean=estimate_mean(scores),
        pass_at={k: estimate_pass_at(correct, samples, k) for k in list_ks(samples)},
        pass_all={k: estimate_pass_all(correct, samples, k) for k in list_ks(samples)},
        finished=estimate_mean([[float(record.finished) for record in row] for row in table]),
        answered=estimate_mean([[float(record.answered) for record in row] for row in table]),
        tokens=LengthSummary(
            mean=float(lengths.mean()),
            median=float(np.median(lengths)),
            p90=float(np.quantile(lengths, 0.9)),
            longest=int(lengths.max()),
        ),
        limits=dict(sorted(Counter(record.limit for record in records if record.limit).items())),
        groups={
            name: {
                value: GroupScore(questions=len(numbers), mean=estimate_mean([scores[number] for number in numbers]))
                for value, numbers in sorted(values.items())
            }
            for name, values in by_label.items()
            if len(values) > 1
        },
        calibration=_calibrate(records) if has_confidence else None,
    )


def _calibrate(records: Sequence[SampleRecord]) -> CalibrationScore:
    stated = [NO_CONFIDENCE if record.confidence is None else record.confidence for record in records]
    correct = [record.score > 0.5 for record in records]
    return CalibrationScore(
        error=compute_calibration_error(stated, correct),
        hle_compatible=compute_hle_calibration_error(stated, correct),
        answers=len(records),
        without_confidence=sum(record.confidence is None for record in records),
    )
