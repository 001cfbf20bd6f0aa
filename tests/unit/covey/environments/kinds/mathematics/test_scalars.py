"""Expressions: parsing, refusal and equality."""

from fractions import Fraction

import pytest
import sympy

from covey.environments.kinds.mathematics.scalars import are_equal, evaluate_real, find_ratio, parse_expression

pytestmark = pytest.mark.unit

X, Y = sympy.symbols("x y", real=True)


@pytest.mark.parametrize(
    ("latex", "expression"),
    [
        ("x+1", X + 1),
        ("xy", X * Y),
        ("2x^10", 2 * X**10),
        ("x^(1/3)", X ** sympy.Rational(1, 3)),
        (r"\frac{x}{2}", X / 2),
        (r"\sqrt{8}", 2 * sympy.sqrt(2)),
        (r"\sqrt[3]{x}", X ** sympy.Rational(1, 3)),
        ("sin(x)", sympy.sin(X)),
        (r"\sin^{-1} x", sympy.asin(X)),
        (r"\sin 30^\circ", sympy.Rational(1, 2)),
        (r"\ln x", sympy.log(X)),
        (r"\log_2 8", sympy.Integer(3)),
        ("e^{x}", sympy.exp(X)),
        ("2i", 2 * sympy.I),
        (r"\text {e}", sympy.E),
        ("0.1x", X / 10),
        ("5!", sympy.Integer(120)),
        (r"\binom{5}{2}", sympy.Integer(10)),
        (r"\infty", sympy.oo),
        ("|x|", sympy.Abs(X)),
        ("10^{5}", sympy.Integer(100_000)),
    ],
)
def test_parse_expression__latex__gives_its_expression(latex, expression):
    assert parse_expression(latex) == expression


@pytest.mark.parametrize(
    "latex",
    [
        "",
        "1 2",
        "5!!",
        "x^y^z",
        "9^{9^{9}}",
        "2^{2000}",
        "x^{1001}",
        "(x+1)^{17}",
        "201!",
        r"\cosh 1001",
        "e^{1001}",
        r"\binom{1000}{2}",
        r"\int x dx",
        r"\sum x",
        r"\gcd(4,x)",
        r"\def x",
        "x=1",
        "1/0",
        "x;y",
        "\u0445",
        "1" * 401,
        "5 +",
        "}5{",
    ],
)
def test_parse_expression__unreadable_or_too_large__is_none(latex):
    assert parse_expression(latex) is None


def test_parse_expression__plain_words__are_letters_and_not_commands_of_the_parser():
    letters = sympy.symbols("e r o s z", real=True)
    parsed = parse_expression("zeros(3)")
    assert parsed is None or parsed.free_symbols <= set(letters)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (X**2 - 1, (X - 1) * (X + 1)),
        (sympy.sin(X) ** 2 + sympy.cos(X) ** 2, sympy.Integer(1)),
        (sympy.sqrt(12), 2 * sympy.sqrt(3)),
        (sympy.sqrt(5 + 2 * sympy.sqrt(6)), sympy.sqrt(2) + sympy.sqrt(3)),
        (sympy.exp(2 * X), sympy.exp(X) ** 2),
    ],
)
def test_are_equal__same_expression__both_ways(left, right):
    assert are_equal(left, right)
    assert are_equal(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (X, Y),
        (X, sympy.Abs(X)),
        (X * sympy.Rational(1, 10**30), 2 * X * sympy.Rational(1, 10**30)),
        (sympy.pi * sympy.Rational(1, 10**30), 2 * sympy.pi * sympy.Rational(1, 10**30)),
        (sympy.exp(sympy.pi * sympy.sqrt(163)), sympy.Integer(640320**3 + 744)),
        (sympy.Function("f")(X), sympy.Function("f")(Y)),
        (sympy.oo, -sympy.oo),
    ],
)
def test_are_equal__other_expression__neither_way(left, right):
    assert not are_equal(left, right)
    assert not are_equal(right, left)


def test_find_ratio__constant_factor__is_found():
    assert find_ratio(2 * X + 4 * Y - 6, X + 2 * Y - 3) == 2
    assert find_ratio(X - Y, Y - X) == -1


def test_find_ratio__none__for_other_variables_constants_and_variable_factors():
    assert find_ratio(X, Y) is None
    assert find_ratio(X * Y, X) is None
    assert find_ratio(X**2, X) is None
    assert find_ratio(sympy.Integer(1), sympy.Integer(2)) is None
    assert find_ratio(X, X - X) is None


def test_evaluate_real__constant__is_close_and_exact_for_rationals():
    assert evaluate_real(sympy.Rational(1, 4)) == Fraction(1, 4)
    root = evaluate_real(sympy.sqrt(2))
    assert root is not None
    assert abs(root**2 - 2) < Fraction(1, 10**50)
    assert evaluate_real(sympy.I) is None
    assert evaluate_real(sympy.oo) is None
