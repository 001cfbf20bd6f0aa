"""Grades of mathematics against labels given by hand, math-verify's own cases, junk and formats of the same number."""

import json
import logging
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from covey.environments.kinds.mathematics.mathematics import PACKAGES, is_right, versions

pytestmark = pytest.mark.unit

DATA = Path(__file__).parents[5] / "data/grading"


def read(name):
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


CASES = read("mathematics.jsonl")
FIELD_ANSWERS = read("field_answers.jsonl")
LIBRARY_CASES = read("math_verify.jsonl")
DISAGREEMENTS = read("known_disagreements.jsonl")
JUNK = read("junk.txt")
NAMED = {"ids": lambda case: f"{case['truths'][0]} | {case['answer'][:40]!r}"}


def test_cases__are_many_and_many_are_wrong():
    assert len(CASES) >= 400
    assert sum(not case["right"] for case in CASES) >= 150
    assert all(case["why"] for case in CASES)


def test_field_answers__are_three_hundred_and_a_third_is_wrong():
    assert len(FIELD_ANSWERS) == 300
    assert sum(not case["right"] for case in FIELD_ANSWERS) >= 100
    assert {case["format"] for case in FIELD_ANSWERS} == {
        "NuminaMath-1.5", "DeepScaleR", "MATH-500", "AIME", "GSM8K", "OlympiadBench",
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES, **NAMED)
def test_is_right__labelled_case(case):
    assert is_right(case["answer"], case["truths"]) is case["right"], case["why"]


@pytest.mark.parametrize("case", FIELD_ANSWERS, ids=lambda case: f"{case['truth']} | {case['answer']}")
def test_is_right__answer_in_the_format_of_a_data_set(case):
    """The answers are written for this test, in the formats that the data sets use. Their labels are by hand."""
    assert is_right(case["answer"], [case["truth"]]) is case["right"], case["kind"]


@pytest.mark.parametrize("case", LIBRARY_CASES, **NAMED)
def test_is_right__case_of_math_verify(case):
    """The cases are facts from the tests of huggingface/Math-Verify 0.9.0 (Apache-2.0). `source` names each test."""
    assert is_right(case["answer"], case["truths"]) is case["right"], case["source"]


@pytest.mark.parametrize("case", DISAGREEMENTS, **NAMED)
def test_is_right__known_disagreement__still_differs(case):
    """Each is a case of math-verify's tests with its label there. If a grade changes, move it to math_verify.jsonl."""
    assert len(DISAGREEMENTS) <= 20
    assert case["why"]
    assert case["grade"] is not case["right"]
    assert is_right(case["answer"], case["truths"]) is case["grade"], case["why"]


@pytest.mark.parametrize(
    "truth",
    ["42", "-17", r"\frac{3}{7}", r"2\sqrt{3}", "x^2+2x+1", "[1,2)", "(3,-4)", r"\{1,2,3\}", "2x+3y=6", "x>7"],
)
def test_is_right__junk__never(truth):
    assert len(JUNK) >= 500
    assert [junk for junk in JUNK if is_right(junk, [truth])] == []


def test_is_right__no_truth__nothing_is_right():
    assert not is_right("42", [])
    assert not is_right("", [""])
    assert not is_right(".", ["."])


def test_is_right__several_truths__any_counts():
    assert is_right("0.5", ["7", r"\frac{1}{2}"])
    assert not is_right("0.6", ["7", r"\frac{1}{2}"])


def test_is_right__order_of_calls__changes_nothing():
    pairs = [(case["answer"], case["truths"]) for case in CASES[::4]]
    forward = [is_right(answer, truths) for answer, truths in pairs]
    backward = [is_right(answer, truths) for answer, truths in reversed(pairs)]
    assert forward == backward[::-1] == [case["right"] for case in CASES[::4]]


def test_is_right__library__logs_nothing(caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        is_right(r"\frac{x}{", [r"\frac{x+1}{y}"])
        is_right("x+y+1", ["x+y+2"])
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_versions__all_packages_that_affect_grades__are_named():
    assert set(versions()) == set(PACKAGES)
    assert versions()["math-verify"].startswith("0.9.")


@given(value=st.fractions(max_denominator=999).filter(lambda value: abs(value) < 10**9))
def test_is_right__forms_of_a_fraction__all_right_and_its_neighbours_wrong(value: Fraction):
    top, bottom = value.numerator, value.denominator
    truth = rf"\frac{{{top}}}{{{bottom}}}"
    sign, size = ("-", -top) if top < 0 else ("", top)
    forms = [f"{top}/{bottom}", rf"{sign}\dfrac{{{size}}}{{{bottom}}}", rf"$\frac{{{3 * top}}}{{{3 * bottom}}}$"]
    forms.append(f"x = {top}/{bottom}")
    if bottom > 1 and size > bottom:
        forms.append(rf"{sign}{size // bottom}\frac{{{size % bottom}}}{{{bottom}}}")
    assert [form for form in forms if not is_right(form, [truth])] == []
    assert not is_right(f"{top + 1}/{bottom}", [truth])
    if top:
        assert not is_right(f"{-top}/{bottom}", [truth])


@given(value=st.integers(-(10**15), 10**15))
def test_is_right__forms_of_an_integer__all_right_and_its_neighbours_wrong(value: int):
    forms = [f"{value}", f"{value:,}", f"{value}.00", f"${value}$", rf"\boxed{{{value}}}", f"{value}.", f"{{{value}}}"]
    assert [form for form in forms if not is_right(form, [str(value)])] == []
    for other in (value + 1, value - 1, value * 10 + 1):
        assert not is_right(str(other), [str(value)])


@settings(max_examples=15)
@given(roots=st.lists(st.integers(-9, 9), min_size=2, max_size=3))
def test_is_right__polynomial_expanded__is_the_product_of_its_factors(roots):
    coefficients = [1]
    for root in roots:
        shifted = [*coefficients, 0]
        coefficients = [a - root * b for a, b in zip(shifted, [0, *coefficients], strict=True)]
    terms = [f"{c:+d}x^{len(coefficients) - 1 - place}" for place, c in enumerate(coefficients)]
    product = "".join(f"(x{-root:+d})" for root in roots)
    assert is_right(product, ["".join(terms).removeprefix("+")])
    assert not is_right(product + "+1", ["".join(terms).removeprefix("+")])


@given(items=st.lists(st.integers(-99, 99), min_size=2, max_size=6, unique=True), seed=st.randoms())
def test_is_right__order__counts_in_a_tuple_and_not_in_a_set(items, seed):
    other = [*items]
    seed.shuffle(other)
    assume(other != items)
    text, shuffled = (", ".join(map(str, each)) for each in (items, other))
    assert is_right(shuffled, [text])
    assert is_right(rf"\{{{shuffled}\}}", [rf"\{{{text}\}}"])
    assert not is_right(f"({shuffled})", [f"({text})"])
    assert not is_right(", ".join(map(str, items[:-1])), [text])
