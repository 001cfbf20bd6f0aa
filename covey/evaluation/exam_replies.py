"""Questions and replies of Humanity's Last Exam: which can be graded without a judge, and what a reply states.

Main names: `find_obstacle`, `SYSTEM_EXACT`, `SYSTEM_CHOICE`, `read_exam_reply`. The reply states an explanation, an
answer and a confidence, as arXiv 2501.14249, appendix C.1, asks for. Every function takes linear time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from covey.environments.kinds.row_kinds import LETTERS

Obstacle = Literal["picture", "judge"]
"""Why a question is not asked: it has a picture, or its answer must be graded by a judge."""
_STATED = "Confidence: {your confidence score between 0% and 100% for your answer}"
SYSTEM_EXACT = (
    "Your response should be in the following format:\nExplanation: {your explanation for your final answer}\n"
    f"Exact Answer: {{your succinct, final answer}}\n{_STATED}"
)
"""Published system message for questions whose answer is a text."""
SYSTEM_CHOICE = (
    "Your response should be in the following format:\nExplanation: {your explanation for your answer choice}\n"
    f"Answer: {{your chosen answer}}\n{_STATED}"
)
"""Published system message for questions with choices."""
MAX_WORDS = 5
"""Maximum number of words of an answer that is compared with the reference answer. Longer ones need a judge."""

_MARKS = r"^[ \t]{0,8}[*_#>\-]{0,4}[ \t]{0,4}[*_]{0,3}"
_ANSWER = re.compile(rf"{_MARKS}(?:(?:exact|final|correct)[ \t]+)?answer[*_]{{0,3}}[ \t]{{0,4}}:", re.I | re.M)
_CONFIDENCE = re.compile(
    rf"{_MARKS}confidence(?:[ \t]+(?:score|level))?[*_]{{0,3}}[ \t]{{0,4}}:[ \t]{{0,4}}[*_]{{0,3}}[ \t]{{0,4}}"
    r"(?P<number>[0-9]{1,3}(?:\.[0-9]{1,6})?)(?![0-9.])[ \t]{0,2}\\?(?P<percent>%?)",
    re.I | re.M,
)
_HEAD = re.compile(rf"{_MARKS}(?:explanation|confidence)\b", re.I | re.M)
_CHOICE = re.compile(r"^[ \t]{0,4}\(?([A-Z])[.):][ \t]{1,4}(\S[^\n]*)$", re.M)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{2,}")
_FORMULA = re.compile(r"[0-9\\=+^]")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExamReply:
    """What a reply states. Example: ExamReply(answer="42", confidence=0.8)."""

    answer: str | None
    """Text after the last "Answer:", without the confidence. None if there is none."""
    confidence: float | None
    """Stated confidence from 0 to 1. None if there is none."""


def find_obstacle(values: Mapping[str, object]) -> Obstacle | None:
    """Return why a row of the exam cannot be asked and graded here, or None.

    A choice is graded by its letter. An exact answer is compared with the reference answer, if that has one line and at
    most `MAX_WORDS` words. Commands of LaTeX and single letters are not words.
    """
    if values.get("image"):
        return "picture"
    answer = str(values.get("answer", "")).strip()
    if values.get("answer_type") == "multipleChoice":
        return None if len(answer) == 1 and answer in LETTERS else "judge"
    is_short = "\n" not in answer and len(_WORD.findall(_COMMAND.sub(" ", answer))) <= MAX_WORDS
    return None if answer and is_short else "judge"


def is_formula(answer: str) -> bool:
    """Return whether an exact answer is compared as mathematics: it has a digit, a command of LaTeX or one of = + ^."""
    return _FORMULA.search(answer) is not None


def read_choices(question: str, right: str) -> list[str]:
    """Return the texts of the choices A, B, C ... that end a question.

    If there is no such list or it lacks the letter `right`, the choices are the letters themselves.
    """
    found = _CHOICE.findall(question)
    starts = [i for i, (letter, _) in enumerate(found) if letter == "A"]
    texts: list[str] = []
    for letter, text in found[starts[-1] :] if starts else []:
        if letter != LETTERS[len(texts) : len(texts) + 1]:
            break
        texts.append(text.strip())
    if LETTERS.index(right) < len(texts):
        return texts
    return list(LETTERS[: max(5, LETTERS.index(right) + 1)])


def read_exam_reply(text: str) -> ExamReply:
    """Return what a reply states, given the text after the thinking part. The last statement of each kind counts.

    "Confidence: 0.8" and "Confidence: 80%" are equal: without a percent sign, a number with a decimal point of at most
    1 is a share. A confidence above 100 percent counts as 100 percent.
    """
    stated = list(_CONFIDENCE.finditer(text))
    confidence = None
    if stated:
        number, percent = stated[-1]["number"], stated[-1]["percent"]
        is_share = "." in number and not percent and float(number) <= 1
        confidence = min(1.0, float(number) if is_share else float(number) / 100)
    answers = list(_ANSWER.finditer(text))
    if not answers:
        return ExamReply(answer=None, confidence=confidence)
    start = answers[-1].end()
    after = _HEAD.search(text, start)
    answer = text[start : after.start() if after else len(text)].strip()
    for mark in ("***", "**", "*", "__", "_"):  # "**Answer:** 5" closes its emphasis after the colon
        if answer.startswith(mark) and answer.count(mark) == 1:
            answer = answer.removeprefix(mark).strip()
    return ExamReply(answer=answer or None, confidence=confidence)
