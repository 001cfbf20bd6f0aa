"""Sets of real numbers from brackets, unions and inequalities."""

import pytest
from sympy import FiniteSet, Interval, Reals, S, oo

from covey.environments.kinds.mathematics.latex import normalise
from covey.environments.kinds.mathematics.reading import read_value
from covey.environments.kinds.mathematics.sets import RealSet, read_set

pytestmark = pytest.mark.unit


def read(text):
    form = normalise(text)
    value = None if form is None else read_value(form)
    return None if value is None else read_set(value)


@pytest.mark.parametrize(
    ("text", "members", "variable"),
    [
        ("[1,2)", Interval.Ropen(1, 2), ""),
        (r"(-\infty, 3]", Interval(-oo, 3), ""),
        (r"\{1,2\}", FiniteSet(1, 2), ""),
        (r"\emptyset", S.EmptySet, ""),
        (r"\mathbb{R}", Reals, ""),
        (r"\mathbb{R} \setminus \{1\}", Reals - FiniteSet(1), ""),
        (r"[1,2] \cup (2,3]", Interval(1, 3), ""),
        ("x > 3", Interval.open(3, oo), "x"),
        ("3 < x", Interval.open(3, oo), "x"),
        ("x <= 3", Interval(-oo, 3), "x"),
        ("1 < x <= 2", Interval.Lopen(1, 2), "x"),
        ("2 >= x > 1", Interval.Lopen(1, 2), "x"),
        (r"x \ne 1", Reals - FiniteSet(1), "x"),
        ("x < 1 or x > 2", Interval.open(-oo, 1) | Interval.open(2, oo), "x"),
        (r"\{y : y > 2\}", Interval.open(2, oo), "y"),
    ],
)
def test_read_set__text__has_its_members(text, members, variable):
    assert read(text) == RealSet(members=members, variable=variable)


@pytest.mark.parametrize(
    "text", ["5", "(2,1)", "[1,1]", "(1,2,3)", "[a,b]", "x > y", "x + y > 1", "x < 1 or y > 2", "[0,i]"]
)
def test_read_set__anything_else__is_none(text):
    assert read(text) is None


def test_is_same__variables__differ_only_if_both_are_named():
    named, other, unnamed = (RealSet(members=Interval(0, 1), variable=name) for name in ("x", "y", ""))
    assert named.is_same(unnamed)
    assert unnamed.is_same(other)
    assert not named.is_same(other)
    assert not named.is_same(RealSet(members=Interval(0, 2), variable="x"))
