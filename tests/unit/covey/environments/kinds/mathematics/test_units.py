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
    ("text", "rest", "dimension", "factor"),
    [
        ("5 cm", "5", "m", "1/100"),
        ("5cm", "5", "m", "1/100"),
        ("5 m", "5", "m", "1"),
        (r"5\text { cm}^2", "5", "m^2", "1/10000"),
        (r"5\text {cm}^{3}", "5", "m^3", "1/1000000"),
        (r"5 \text { cm squared}", "5", "m^2", "1/10000"),
        ("5 sq ft", "5", "m^2", "0.09290304"),
        ("5 square units", "5", "unit^2", "1"),
        (r"5 \text { L}", "5", "m^3", "1/1000"),
        ("5 hours", "5", "s", "3600"),
        ("36 km/h", "36", "m s^-1", "5/18"),
        (r"60 \text {km} / \text {h}", "60", "m s^-1", "5/18"),
        (r"5 \frac{\text {m}}{\text {s}}", "5", "m s^-1", "1"),
        (r"5 \text { miles per hour}", "5", "m s^-1", "0.44704"),
        (r"9.8 \text {m} / \text {s}^{2}", "9.8", "m s^-2", "1"),
        (r"9.8 \text {m} \cdot \text {s}^{-2}", "9.8", "m s^-2", "1"),
        ("9.8 m s^{-2}", "9.8", "m s^-2", "1"),
        (r"1.2\text { g/cm^{3}}", "1.2", "g m^-3", "1000000"),
        (r"5 \text {N} \cdot \text {m}", "5", "g m^2 s^-2", "1000"),
        (r"5 \text { J/(kg K)}", "5", "K^-1 m^2 s^-2", "1"),
        (r"90^\circ", "90", "degree", "1"),
        (r"90^{\circ}", "90", "degree", "1"),
        ("90 degrees", "90", "degree", "1"),
        (r"37^\circ\text {C}", "37", "celsius", "1"),
        (r"98.6^\circ F", "98.6", "fahrenheit", "1"),
        (r"5 \text { degrees Celsius}", "5", "celsius", "1"),
        (r"\dollar 5", "5", "dollar", "1"),
        (r"-\euro 5", "-5", "euro", "1"),
        (r"5 \text { cents}", "5", "dollar", "1/100"),
        (r"\dollar 18 \text { per hour}", "18", "dollar s^-1", "1/3600"),
        (r"5\text { apples}", "5", "thing", "1"),
        (r"5 \text { km away}", "5", "m", "1000"),
        (r"5 \text { people per km}", "5", "m^-1 thing", "1/1000"),
    ],
)
def test_split_unit__known__dimension_and_factor(text, rest, dimension, factor):
    expression, unit, scale = split_unit(text)
    powers = (name.partition("^") for name in dimension.split())
    expected = tuple((name, int(power or 1)) for name, _, power in powers)
    assert (expression.strip(), unit, scale) == (rest, MeasureUnit(dimension=expected, factor=Fraction(factor)), 1)


@pytest.mark.parametrize(
    ("text", "number", "scale"),
    [("5 million", "5", 10**6), (r"1.5 \text { billion dollars}", "1.5", 10**9), (r"2 \text { dozen}", "2", 12)],
)
def test_split_unit__word_for_a_number__is_a_factor(text, number, scale):
    expression, _, factor = split_unit(text)
    assert (expression.strip(), factor) == (number, scale)


@pytest.mark.parametrize(
    "text",
    ["5", "5m", "5x", "5 garbage", r"5\text { or }", r"5\text { is not 6}", r"5\text { tenths}", r"5\text { lakh}",
     "cm", r"\text {cm}",
     r"\sin 30^\circ", r"\pi r^2 h", r"2\text {e}", r"1 - \frac{1}{\text {e}}", r"5\text { m} + 3\text { m}"],
)  # fmt: skip
def test_split_unit__no_unit__leaves_the_text_unchanged(text):
    assert split_unit(text) == (text, None, 1)
