"""What replies of Humanity's Last Exam state, and which questions are asked without a judge."""

import time

import pytest

from covey.evaluation.exam_replies import (
    ExamReply,
    find_obstacle,
    is_formula,
    read_choices,
    read_exam_reply,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "answer", "confidence"),
    [
        ("Explanation: because.\nExact Answer: 42\nConfidence: 80%", "42", 0.8),
        ("Explanation: x\nAnswer: B\nConfidence: 95", "B", 0.95),
        ("**Explanation:** x\n**Exact Answer:** $\\frac{1}{2}$\n**Confidence:** 7%", "$\\frac{1}{2}$", 0.07),
        ("Answer: A\nConfidence: 10%\nNo, wait.\nAnswer: C\nConfidence: 60 %", "C", 0.6),
        ("Answer: two\nlines\nConfidence: 0.85", "two\nlines", 0.85),
        ("Final answer: x\n- Confidence score: 100\\%", "x", 1.0),
        ("Answer: x\nConfidence: 250%", "x", 1.0),
        ("Answer: x\nConfidence: 1", "x", 0.01),
        ("Answer: x\nConfidence: high", "x", None),
        ("Confidence: 30%\nExact answer: y", "y", 0.3),
        ("The answer is 42.", None, None),
        ("Answer:\nConfidence: 50%", None, 0.5),
        ("", None, None),
    ],
)
def test_read_exam_reply__published_forms__are_read(text: str, answer: str | None, confidence: float | None) -> None:
    assert read_exam_reply(text) == ExamReply(answer=answer, confidence=confidence)


@pytest.mark.parametrize("text", ["\n" * 200_000, "Answer: " * 30_000, "* " * 100_000, "Confidence: " * 30_000])
def test_read_exam_reply__long_hostile_texts__take_linear_time(text: str) -> None:
    started = time.process_time()
    read_exam_reply(text)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("row", "obstacle"),
    [
        ({"image": "data:image/png;base64,xx", "answer_type": "multipleChoice", "answer": "A"}, "picture"),
        ({"image": "", "answer_type": "multipleChoice", "answer": "D"}, None),
        ({"image": "", "answer_type": "multipleChoice", "answer": "D and E"}, "judge"),
        ({"image": "", "answer_type": "exactMatch", "answer": "17"}, None),
        ({"image": None, "answer_type": "exactMatch", "answer": r"\frac{\alpha \cdot \beta}{2} \text{ for } n"}, None),
        ({"image": "", "answer_type": "exactMatch", "answer": "Marie Curie and her husband"}, None),
        ({"image": "", "answer_type": "exactMatch", "answer": "Because the first of them is older"}, "judge"),
        ({"image": "", "answer_type": "exactMatch", "answer": "a\nb"}, "judge"),
        ({"image": "", "answer_type": "exactMatch", "answer": ""}, "judge"),
    ],
)  # fmt: skip
def test_find_obstacle__pictures_and_prose__are_not_asked(row: dict[str, object], obstacle: str | None) -> None:
    assert find_obstacle(row) == obstacle


def test_is_formula__digits_and_latex__are_mathematics() -> None:
    assert [is_formula(text) for text in ("17", r"\pi", "x = y", "Paris", "d-orbital")] == [True] * 3 + [False] * 2


def test_read_choices__a_list_at_the_end__is_found() -> None:
    question = "A. Smith asks:\nwhich?\n\nAnswer Choices:\nA. red\nB. green\nC) blue"
    assert read_choices(question, "C") == ["red", "green", "blue"]
    assert read_choices(question, "D") == ["A", "B", "C", "D", "E"]  # the list has no D
    assert read_choices("Which? (A) one or (B) two", "B") == ["A", "B", "C", "D", "E"]
    assert read_choices("Which?", "G") == list("ABCDEFG")
