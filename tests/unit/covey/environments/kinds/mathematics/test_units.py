"""Units and percent signs after a number."""

from fractions import Fraction

import pytest

from covey.environments.kinds.mathematics.units import MeasureUnit, split_percent, split_unit

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "rest"), [("5%", "5"), (r"5\%", "5"), ("5 percent", "5"), (r"5\text { percent}", "5"), ("5 pct", "5")]
)
def test_split_percent__sign__is_cut_off(text, rest):
    assert split_percent(text) == (rest, True)


@pytest.mark.parametrize("text", ["5", "%", "5%5", "apercent"])
def test_split_percent__no_sign__leaves_the_text_unchanged(text):
    assert split_percent(text) == (text, False)


@pytest.mark.parametrize(
    ("text", "rest", "dimension", "power", "factor"),
    [
        ("5 cm", "5", "length", 1, Fraction(1, 100)),
        ("5cm", "5", "length", 1, Fraction(1, 100)),
        ("5 m", "5", "length", 1, Fraction(1)),
        (r"5\text { cm}^2", "5", "length", 2, Fraction(1, 10_000)),
        (r"5\text {cm}^{3}", "5", "length", 3, Fraction(1, 1_000_000)),
        ("5 sq ft", "5", "length", 2, Fraction("0.3048") ** 2),
        ("5 square units", "5", "count", 2, Fraction(1)),
        ("5 hours", "5", "time", 1, Fraction(3600)),
        ("36 km/h", "36", "speed", 1, Fraction(5, 18)),
        (r"90^\circ", "90", "angle", 1, Fraction(1)),
        (r"90^{\circ}", "90", "angle", 1, Fraction(1)),
        ("90 degrees", "90", "angle", 1, Fraction(1)),
        (r"5\text { red apples}", "5", "thing", 1, Fraction(1)),
    ],
)
def test_split_unit__known__dimension_and_factor(text, rest, dimension, power, factor):
    expression, unit = split_unit(text)
    assert (expression.strip(), unit) == (rest, MeasureUnit(dimension=dimension, power=power, factor=factor))


@pytest.mark.parametrize(
    "text",
    ["5", "5m", "5x", "5 garbage", r"5\text { or }", r"5\text { is not 6}", "cm", r"\text {cm}", r"\sin 30^\circ"],
)
def test_split_unit__no_unit__leaves_the_text_unchanged(text):
    assert split_unit(text) == (text, None)
