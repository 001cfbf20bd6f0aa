"""Letters and texts of choices, against labels given by hand."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.environments.kinds.multiple_choice import is_right

pytestmark = pytest.mark.unit

DATA = Path(__file__).parents[4] / "data/grading"
CASES = [json.loads(line) for line in (DATA / "multiple_choice.jsonl").read_text().splitlines()]
JUNK = [json.loads(line) for line in (DATA / "junk.txt").read_text().splitlines()]
CITIES = ["Madrid", "London", "Oslo", "Berlin"]


def test_cases__are_many_about_half_of_them_wrong():
    assert len(CASES) >= 60
    assert 0.4 < sum(case["right"] for case in CASES) / len(CASES) < 0.6


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['answer']!r}: {case['why']}")
def test_is_right__labelled_case(case):
    assert is_right(case["answer"], choices=case["choices"], right=case["index"]) is case["right"]


def test_is_right__junk__never():
    assert [junk for junk in JUNK if is_right(junk, choices=CITIES, right=1)] == []


def test_is_right__long_answer__is_not_read():
    assert not is_right("B" * 10_000_000, choices=CITIES, right=1)


@pytest.mark.parametrize(("count", "right"), [(4, 4), (4, -1), (0, 0), (27, 0)])
def test_is_right__choice_without_a_letter__raises(count, right):
    with pytest.raises(ValueError, match="at most 26 letters"):
        is_right("A", choices=[str(number) for number in range(count)], right=right)


@given(count=st.integers(2, 26), right=st.integers(0, 25), named=st.integers(0, 25))
def test_is_right__letter__exactly_the_right_one(count, right, named):
    right %= count
    choices = [f"text {number}" for number in range(count)]
    letter = chr(ord("A") + named)
    for answer in (letter, f"({letter.lower()})", f"Option {letter}.", f"{letter}) text {named}", f"Text {named}"):
        assert is_right(answer, choices=choices, right=right) is (named == right)
