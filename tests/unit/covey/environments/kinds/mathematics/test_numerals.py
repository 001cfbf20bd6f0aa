"""Plain numbers, with values worked out by hand."""

from fractions import Fraction

import pytest

from covey.environments.kinds.mathematics.numerals import read_number, spell_numbers

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
        ("3/4", Fraction(3, 4), None),
        ("-3/4", Fraction(-3, 4), None),
        (r"\frac{3}{4}", Fraction(3, 4), None),
        (r"-\frac{3}{4}", Fraction(-3, 4), None),
        (r"\frac{-3}{4}", Fraction(-3, 4), None),
        (r"2\frac{1}{3}", Fraction(7, 3), None),
        ("-2 1/3", Fraction(-7, 3), None),
        ("1.5e3", Fraction(1500), -2),
        (r"3.2\times 10^{-5}", Fraction(32, 10**6), 6),
        (r"1.5 \cdot 10^{3}", Fraction(1500), -2),
        ("1.5x10^3", Fraction(1500), -2),
        (r"0.\bar{3}", Fraction(1, 3), None),
        (r"0.1\bar{6}", Fraction(1, 6), None),
        (r"-2.\bar{09}", Fraction(-23, 11), None),
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


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("1,000", "1000"),
        ("-12,345.67", "-12345.67"),
        ("x=5,000", "x=5000"),
        ("1,234,567", "1234567"),
        ("100,200", "100200"),
        (r"\frac{1,000}{3}", r"\frac{1000}{3}"),
        ("2^{1,000}", "2^{1000}"),
        ("(1,000, 2,000)", "(1000, 2000)"),
        ("[1,000; 2,500]", "[1000; 2500]"),
        ("1,000,2,000", "1000,2000"),
        ("(1,080)", "(1080)"),
        ("(1{,}234)", "(1234)"),
        ("10{,}080", "10080"),
        ("0{,}125", "0.125"),
        ("3{,}5", "3.5"),
        ("1 000 000", "1000000"),
        (r"0.\dot{3}", r"0.\bar{3}"),
        (r"0.\dot{1}\dot{2}", r"0.\bar{12}"),
        (r"0.4\dot{1}2\dot{3}", r"0.4\bar{123}"),
        (r"0.\dot{1}\dot{2}\dot{3}", r"0.\bar{123}"),
        ("0.1(6)", r"0.1\bar{6}"),
        ("0.333...", r"0.\bar{3}"),
        ("0.1666 ...", r"0.1\bar{6}"),
        ("2.4545...", r"2.\bar{45}"),
        (r"0.\bar{3}...", r"0.\bar{3}"),
    ],
)
def test_spell_numbers__commas_spaces_and_periods__have_one_spelling(text, spelling):
    assert spell_numbers(text) == spelling


@pytest.mark.parametrize(
    "text",
    ["1,23", "1,2345", "1, 000", "0,000", "10,100,1000", "(1,200)", "[100,200]", r"\{1,100\}", "{1,234}", "1 23",
     "2 100/7", r"2 100 \frac{1}{2}", "1.414...", "1.22...", "0.333", "f(3)", "2(3)", "1.2.3(4)"],
)  # fmt: skip
def test_spell_numbers__separators_and_other_text__stay(text):
    assert spell_numbers(text) == text
