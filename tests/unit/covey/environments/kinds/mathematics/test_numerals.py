"""Plain numbers, with values worked out by hand."""

from fractions import Fraction

import pytest

from covey.environments.kinds.mathematics.numerals import is_grouped, read_number

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "value", "places"),
    [
        ("5", Fraction(5), 0),
        ("-5", Fraction(-5), 0),
        ("+5", Fraction(5), 0),
        ("5.50", Fraction(11, 2), 2),
        (".5", Fraction(1, 2), 1),
        ("007", Fraction(7), 0),
        ("1,234.5", Fraction(2469, 2), 1),
        ("1 234 567", Fraction(1234567), 0),
        ("3/4", Fraction(3, 4), None),
        ("-3/4", Fraction(-3, 4), None),
        (r"\frac{3}{4}", Fraction(3, 4), None),
        (r"-\frac{3}{4}", Fraction(-3, 4), None),
        (r"\frac{-3}{4}", Fraction(-3, 4), None),
        (r"2\frac{1}{3}", Fraction(7, 3), None),
        ("-2 1/3", Fraction(-7, 3), None),
        ("1.5e3", Fraction(1500), -2),
        (r"3.2\times 10^{-5}", Fraction(32, 10**6), 6),
        (r"0.\overline{3}", Fraction(1, 3), None),
        (r"0.1\overline{6}", Fraction(1, 6), None),
        (r"-2.\overline{09}", Fraction(-23, 11), None),
        ("3:4", Fraction(3, 4), None),
    ],
)
def test_read_number__plain_number__has_its_value(text, value, places):
    assert read_number(text) == (value, places)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "-",
        "1,23",
        "1,2345",
        "1 23",
        "1/0",
        r"\frac{1}{0}",
        r"2\frac{1}{0}",
        "12:30",
        "3:0",
        "1e9999",
        "x",
        "1.2.3",
        "\u0665",
    ],
)
def test_read_number__anything_else__is_none(text):
    assert read_number(text) == (None, None)


def test_is_grouped__commas__in_threes():
    assert is_grouped("1,234,567.8")
    assert not is_grouped("1234")
    assert not is_grouped("1,23")
