"""Names of quantities before an equals sign."""

import pytest

from covey.environments.kinds.mathematics.names import is_name, is_sum_of_names, mentions, squeeze

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "text",
    ["x", "AB", "|AB|", "x_1", "a_{n+1}", "f(x)", "f'(x)", "f^{-1}(x)", "f(2)", "P(X <=2)", "P(A|B)", "E(2X+1)",
     "(x,y)", r"\vec{a}", r"\hat{y}", r"\vec{AB}", r"|\vec{a}+2\vec{b}|", r"\angle ABC", r"S_{\triangle ABC}",
     r"\frac{AB}{CD}", "AB:CD", r"AB \cdot CD", r"\sin A", r"\cos 2\theta", r"\cos(\alpha+\beta)", r"\theta",
     r"\lim_{x\to 0} f(x)", r"\gcd(m,18)", r"\text {Area}", "E[X]", r"|A \cup B|", "S_{MBCN}:S"],
)  # fmt: skip
def test_is_name__quantity__is_one(text):
    assert is_name(text)


@pytest.mark.parametrize(
    "text",
    ["", "5", "2x", "x+1", "x^2", "2x+z", "xy", "x y", "|x-1|", "x(x+1)", r"\sin x", r"\log x", r"\frac{x}{2}",
     r"\sqrt{x}", "a+b", "()", r"\gcd(12,18)", r"\lim 7", "x" * 200],
)  # fmt: skip
def test_is_name__number_or_side_of_an_equation__is_not(text):
    assert not is_name(text)


def test_squeeze__name__has_no_layout():
    assert squeeze(r"\text {S}_{ A B }") == "S_AB"


def test_mentions__name__in_its_own_value():
    assert mentions("x", " x")
    assert mentions("2x+1", "x")
    assert not mentions(r"\max+1", "x")
    assert not mentions("2AB", "AB")


def test_is_sum_of_names__letters_only__is_one():
    assert is_sum_of_names("m + n")
    assert not is_sum_of_names("m")
    assert not is_sum_of_names("m - n")
    assert not is_sum_of_names("2m + n")
