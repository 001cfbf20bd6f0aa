"""Four rules for grading mathematics, over all labelled answers: Covey's, math-verify's, and each before the other.

The rule that comes first decides if it can read both the truth and the answer. Otherwise the second decides. Decision
052 holds the table that `python -m benchmarks.verification.mathematics_rules` prints. A nightly test computes it again.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from math_verify import parse, verify

from benchmarks.verification.grading_cases import read_labels
from covey.environments.kinds.mathematics import scalars
from covey.environments.kinds.mathematics.latex import normalise
from covey.environments.kinds.mathematics.mathematics import is_right
from covey.environments.kinds.mathematics.reading import read_value
from covey.environments.kinds.mathematics.values import (
    Approximation,
    Assignment,
    Chain,
    Combination,
    Group,
    Matrix,
    Scalar,
    Value,
)

JUNK_TRUTH = "42"
"""Truth against which each line of junk.txt is graded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledAnswer:
    """An answer, its truth, and whether it is right according to the label."""

    truth: str
    """Reference answer in LaTeX or plain text."""
    answer: str
    """Answer in LaTeX or plain text."""
    is_right: bool
    """Label."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleScore:
    """Grades of one rule, compared with the labels."""

    rule: str
    """Name of the rule."""
    right: int
    """Number of grades that equal the label."""
    wrong_accepts: int
    """Number of wrong answers that the rule accepts."""
    wrong_rejects: int
    """Number of right answers that the rule rejects."""
    seconds: float
    """CPU seconds for 1,000 answers."""


def list_labels() -> list[LabelledAnswer]:
    """List the labelled answers in tests/data/grading. Cases of math-verify's tests keep their labels."""
    return list(_read_labels())


def _read_labels() -> Iterator[LabelledAnswer]:
    for name in ("mathematics.jsonl", "math_verify.jsonl", "known_disagreements.jsonl"):
        for label in read_labels(name):
            yield from (
                LabelledAnswer(truth=truth, answer=label["answer"], is_right=label["right"])
                for truth in label["truths"][-1:]
            )
    for label in read_labels("field_answers.jsonl"):
        yield LabelledAnswer(truth=label["truth"], answer=label["answer"], is_right=label["right"])
    for junk in read_labels("junk.txt"):
        yield LabelledAnswer(truth=JUNK_TRUTH, answer=junk, is_right=False)


def is_right_by_covey(truth: str, answer: str) -> bool:
    """Return whether Covey's grader accepts the answer."""
    return is_right(answer, [truth])


def is_right_by_math_verify(truth: str, answer: str) -> bool:
    """Return whether math-verify accepts the answer, with its default settings."""
    return bool(verify(parse(f"${truth}$"), parse(f"${answer}$")))


def is_right_by_covey_first(truth: str, answer: str) -> bool:
    """Return Covey's grade if Covey can read both texts, else math-verify's."""
    can_read = _can_covey_read(truth) and _can_covey_read(answer)
    return (is_right_by_covey if can_read else is_right_by_math_verify)(truth, answer)


def is_right_by_math_verify_first(truth: str, answer: str) -> bool:
    """Return math-verify's grade if math-verify can read both texts, else Covey's."""
    can_read = _can_math_verify_read(truth) and _can_math_verify_read(answer)
    return (is_right_by_math_verify if can_read else is_right_by_covey)(truth, answer)


RULES: dict[str, Callable[[str, str], bool]] = {
    "Covey's": is_right_by_covey,
    "math-verify 0.9": is_right_by_math_verify,
    "Covey's first, then math-verify": is_right_by_covey_first,
    "math-verify first, then Covey's": is_right_by_math_verify_first,
}
"""Rules by the names that the table uses."""


def score(name: str, labels: list[LabelledAnswer]) -> RuleScore:
    """Grade the labelled answers by one rule."""
    started = time.process_time()
    grades = [RULES[name](label.truth, label.answer) for label in labels]
    seconds = time.process_time() - started
    accepts = sum(grade and not label.is_right for grade, label in zip(grades, labels, strict=True))
    rejects = sum(not grade and label.is_right for grade, label in zip(grades, labels, strict=True))
    return RuleScore(
        rule=name,
        right=len(labels) - accepts - rejects,
        wrong_accepts=accepts,
        wrong_rejects=rejects,
        seconds=seconds * 1000 / len(labels),
    )


def format_row(row: RuleScore) -> str:
    """Format a row of the table in Markdown."""
    return f"| {row.rule} | {row.right:,} | {row.wrong_accepts} | {row.wrong_rejects} | {row.seconds:.0f} |"


def _can_math_verify_read(text: str) -> bool:
    return any(not isinstance(expression, str) for expression in parse(f"${text}$"))


def _can_covey_read(text: str) -> bool:
    form = normalise(text)
    value = None if form is None else read_value(form)
    return value is not None and _is_read(value)


def _is_read(value: Value) -> bool:
    match value:
        case Scalar():
            return scalars.read_expression(value) is not None
        case Group(items=items) | Combination(parts=items):
            return all(map(_is_read, items))
        case Matrix(rows=rows):
            return all(_is_read(item) for row in rows for item in row)
        case Assignment(value=inner) | Approximation(rounded=inner):
            return _is_read(inner)
        case Chain(sides=sides):
            return all(map(_can_covey_read, sides))
    return True


if __name__ == "__main__":
    answers = list_labels()
    print(f"{len(answers):,} answers, of which {sum(not answer.is_right for answer in answers):,} are wrong")
    print("| rule | right | wrong accepts | wrong rejects | CPU seconds for 1,000 |")
    print("| --- | --- | --- | --- | --- |")
    for rule in RULES:
        print(format_row(score(rule, answers)), flush=True)
