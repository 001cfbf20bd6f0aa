"""Comparison of values: percent signs, units, rounding, order and relations."""

import pytest

from covey.environments.kinds.mathematics.equality import are_same
from covey.environments.kinds.mathematics.latex import normalise
from covey.environments.kinds.mathematics.reading import read_value

pytestmark = pytest.mark.unit


def compare(truth, answer):
    left, right = (read_value(normalise(text) or "") for text in (truth, answer))
    assert left is not None
    return right is not None and are_same(left, right)


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        (r"50\%", "50"),
        (r"50\%", "0.5"),
        ("0.5", r"50\%"),
        ("50", r"50\%"),
        ("5 m", "500 cm"),
        ("2 hours", "120 minutes"),
        ("5", "5 cm"),
        ("5 cm", "5"),
        (r"180^\circ", r"\pi"),
        (r"\pi", r"180^\circ"),
        (r"\frac{1}{7}", "0.142857"),
        ("0.142857", r"\frac{1}{7}"),
        ("(1,2)", "1, 2"),
        ("1, 2", r"\{2, 1\}"),
        (r"\{1, 2\}", r"\{1, 2, 2\}"),
        (r"\{5\}", "5"),
        ("5", r"\{5\}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", "(1,2)"),
        ("x = 5", "5"),
        ("5", "x = 5"),
        ("x = 5", "x = 2+3 = 5"),
        ("x + y = 1", "2x + 2y = 2"),
        ("x + y < 1", "-x - y > -1"),
        ("a < b < c", "c > b > a"),
        ("3:4", "6:8"),
    ],
)
def test_are_same__same_value__true(truth, answer):
    assert compare(truth, answer)


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        (r"50\%", r"0.5\%"),
        ("0.5", "50"),
        ("5 m", "5 cm"),
        ("5 m", "5 kg"),
        (r"5 \text{ m}^2", "5 m"),
        (r"180^\circ", "180 cm"),
        (r"\frac{1}{7}", "0.14286"),
        (r"\frac{1}{7}", "0.142858"),
        ("0.25", "0.250001"),
        ("(1,2)", "2, 1"),
        ("[1,2]", "1, 2"),
        ("(1,2)", r"\{1,2\}"),
        ("1, 1, 2", "1, 2"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", "[1,2]"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        ("x = 5", "y = 5"),
        ("5", "x = 4 = 5"),
        ("x + y = 1", "x + y = 2"),
        ("x + y < 1", "x + y > 1"),
        ("x + y < 1", r"x + y \le 1"),
        ("x + y < 1", "-x - y < -1"),
        ("a < b < c", "a < c < b"),
        ("x + y", "x + y = 0"),
        ("X + y", "x + y"),
    ],
)
def test_are_same__other_value__false(truth, answer):
    assert not compare(truth, answer)
