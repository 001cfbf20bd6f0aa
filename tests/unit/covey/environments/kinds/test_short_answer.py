"""Exact match of short answers, against labels given by hand."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.environments.kinds.short_answer import is_right, normalise
from tests.fakes.cpu_unit import measure_cpu_unit

pytestmark = pytest.mark.unit

DATA = Path(__file__).parents[4] / "data/grading"
CASES = [json.loads(line) for line in (DATA / "short_answer.jsonl").read_text().splitlines()]
JUNK = [json.loads(line) for line in (DATA / "junk.txt").read_text().splitlines()]


def test_cases__are_two_hundred_about_half_of_them_wrong():
    assert len(CASES) >= 200
    assert 0.45 < sum(case["right"] for case in CASES) / len(CASES) < 0.55


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['truths'][0]} | {case['answer']!r}")
def test_is_right__labelled_case(case):
    assert is_right(case["answer"], case["truths"]) is case["right"], case["why"]


@pytest.mark.parametrize("truth", ["Paris", "1848", "Marie Curie", "the Treaty of Westphalia"])
def test_is_right__junk__never(truth):
    assert [junk for junk in JUNK if is_right(junk, [truth])] == []


def test_is_right__long_answer__is_not_read():
    answer = "\ufdfa" * 10_000_000
    started = time.process_time()
    assert not is_right(answer, ["Paris"])
    assert time.process_time() - started < 100 * measure_cpu_unit()


def test_is_right__empty_truth__nothing_is_right():
    assert not is_right("", [""])
    assert not is_right("", ["", "Paris"])
    assert not is_right(" . ", ["."])
    assert not is_right("Paris", [])


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("  The   Hague. ", "hague"),
        ("10\u00b9\u00b2", "10^12"),
        ("1\u00bd", "1 1/2"),
        ("1,234,567.5", "1234567.5"),
        ("1,23", "1,23"),
        ("$\\boxed{\\text{B}}$", "b"),
        ("A minor", "a minor"),
        ("etc...", "etc..."),
    ],
)
def test_normalise__form__by_hand(text, form):
    assert normalise(text) == form


@given(word=st.text(alphabet="abcdefgh xyz", min_size=1).filter(lambda text: text.split() and text.split()[0] != "the"))
def test_is_right__words_in_any_spelling__are_right(word):
    word = " ".join(word.split())
    spellings = [word.upper(), f"**{word}**", f'"{word}."', f" {word}.\n", f"\\text{{{word}}}", f"the {word}"]
    assert [spelling for spelling in spellings if not is_right(spelling, [word])] == []
    assert not is_right(f"{word}q", [word])
