"""Structure of answers in normal form."""

from fractions import Fraction

import pytest

from covey.environments.kinds.mathematics.latex import normalise
from covey.environments.kinds.mathematics.reading import read_value, split_top
from covey.environments.kinds.mathematics.values import (
    Approximation,
    Assignment,
    Chain,
    Combination,
    Group,
    Matrix,
    Scalar,
    Word,
)

pytestmark = pytest.mark.unit


def read(text):
    form = normalise(text)
    assert form is not None
    return read_value(form)


def number(value):
    return Scalar(latex=str(value), exact=Fraction(value), places=0, is_percent=False, unit=None)


ONE, TWO, THREE = number(1), number(2), number(3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", ONE),
        ("(1)", ONE),
        ("{1}", ONE),
        ("1, 2", Group(brackets="", items=(ONE, TWO))),
        ("1 and 2", Group(brackets="", items=(ONE, TWO))),
        (r"1 \text{ or } 2", Group(brackets="", items=(ONE, TWO))),
        ("1; 2", Group(brackets="", items=(ONE, TWO))),
        ("1, 2, and 3", Group(brackets="", items=(ONE, TWO, THREE))),
        ("(1, 2)", Group(brackets="()", items=(ONE, TWO))),
        (r"\langle 1,2\rangle", Group(brackets="()", items=(ONE, TWO))),
        ("[1; 2)", Group(brackets="[)", items=(ONE, TWO))),
        (r"\{1,2\}", Group(brackets="{}", items=(ONE, TWO))),
        (r"\{\}", Group(brackets="{}", items=())),
        (r"x \in [1,2)", Group(brackets="[)", items=(ONE, TWO))),
        ("x = 1", Assignment(name="x", value=ONE, latex=("x", "1"))),
        ("1 = x", Assignment(name="x", value=ONE, latex=("x", "1"))),
        (
            "(x,y) = (1,2)",
            Group(
                brackets="()",
                items=(
                    Assignment(name="x", value=ONE, latex=("x", "1")),
                    Assignment(name="y", value=TWO, latex=("y", "2")),
                ),
            ),
        ),
        (
            r"x = 1 \approx 2",
            Assignment(name="x", value=Approximation(value=ONE, rounded=TWO), latex=("x", "1")),
        ),
        (
            r"1 \approx 2 \approx 3",
            Approximation(value=Approximation(value=ONE, rounded=TWO), rounded=THREE),
        ),
        (r"\approx 2", Approximation(value=None, rounded=TWO)),
        (r"x \approx 2", Assignment(name="x", value=TWO, latex=("x", "2"))),
        (r"\vec{a} = 1", Assignment(name="a", value=ONE, latex=(r"\vec{a}", "1"))),
        (r"P(X \le 2) = 1", Assignment(name="P(X<=2)", value=ONE, latex=("P(X <=2)", "1"))),
        ("1 = 2", Assignment(name="", value=TWO, latex=("1", "2"))),
        ("= 1", ONE),
        (
            r"\begin{cases} x = 1 \\ 2 \end{cases}",
            Group(brackets="", items=(Assignment(name="x", value=ONE, latex=("x", "1")), TWO)),
        ),
        ("x = 2 = 1", Assignment(name="x", value=ONE, latex=("x", "1"), steps=("2",))),
        ("1 < x <= 2", Chain(operators=("<", "<="), sides=("1", "x", "2"))),
        (r"\{x | x > 2\}", Chain(operators=(">",), sides=("x", "2"))),
        ("x = x", Chain(operators=("=",), sides=("x", "x"))),
        ("2x = 3y", Chain(operators=("=",), sides=("2x", "3y"))),
        (r"\begin{pmatrix}1&2\end{pmatrix}", Matrix(rows=((ONE, TWO),))),
        (r"\left[\begin{array}{c}1\\2\end{array}\right]", Matrix(rows=((ONE,), (TWO,)))),
        (r"\text{Evelyn}", Word(text="evelyn")),
        ("no solution", Word(text="no solution")),
        (r"\mathbb{R}", Word(text="set:R")),
        ("204_5", Word(text="204_5")),
        ("204_{5}", Word(text="204_5")),
    ],
)
def test_read_value__structure__by_hand(text, value):
    assert read(text) == value


def test_read_value__union__has_its_parts():
    value = read(r"[1,2) \cup [3,3]")
    assert isinstance(value, Combination)
    assert value.operator == "cup"
    assert [part.brackets for part in value.parts if isinstance(part, Group)] == ["[)", "[]"]


def test_read_value__plus_minus__is_a_list_of_two():
    value = read(r"1 \pm \sqrt{2}")
    assert isinstance(value, Group)
    assert [item.latex for item in value.items if isinstance(item, Scalar)] == [r"1 + \sqrt{2}", r"1 - \sqrt{2}"]


@pytest.mark.parametrize(
    "text", ["=", "x =", "= 5", "1,", ",1", "1 < 2 < 3 < 4 < 5 < 6", r"\begin{pmatrix}1&2\\3\end{pmatrix}"]
)
def test_read_value__malformed__has_no_value_or_is_not_a_list(text):
    assert not isinstance(read(text), Group | Assignment | Chain | Matrix)


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a,b", ["a", "b"]), ("(a,b),c", ["(a,b)", "c"]), (r"\{a,b\},[c,d)", [r"\{a,b\}", "[c,d)"]), ("", [""])],
)
def test_split_top__commas__outside_brackets(text, parts):
    assert split_top(text, ",") == parts


def test_split_top__command__is_not_the_start_of_a_longer_one():
    assert split_top(r"a\cup b", r"\cup") == ["a", " b"]
    assert split_top(r"a\cupcake b", r"\cup") == [r"a\cupcake b"]
