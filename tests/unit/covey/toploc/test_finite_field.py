"""Polynomials over the field of 65497 elements, against Python integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.toploc import finite_field

pytestmark = pytest.mark.unit

elements = st.integers(min_value=0, max_value=finite_field.PRIME - 1)


@given(st.lists(elements, min_size=1, max_size=20))
def test_invert__any_elements__equals_python_pow(values: list[int]) -> None:
    inverted = finite_field.invert(np.array(values, np.int64))
    assert inverted.tolist() == [pow(value, finite_field.PRIME - 2, finite_field.PRIME) for value in values]


@given(st.lists(elements, min_size=1, max_size=9))
def test_compute_powers__any_count__equals_python_pow(points: list[int]) -> None:
    for count in (1, 2, 3, 8, 13):
        powers = finite_field.compute_powers(np.array([points], np.int64), count)
        assert powers.tolist() == [[[pow(x, t, finite_field.PRIME) for x in points] for t in range(count)]]


def test_compute_master__two_points__is_the_product_by_hand() -> None:
    # (x - 2)(x - 5) = 10 - 7 x + x^2
    assert finite_field.compute_master(np.array([[2, 5]])).tolist() == [[10, finite_field.PRIME - 7, 1]]


def test_evaluate__a_cubic__equals_horner() -> None:
    coefficients = np.array([65496, 1, 40000, 65000])
    points = np.array([0, 1, 65496, 12345])
    expected = [sum(int(c) * int(x) ** t for t, c in enumerate(coefficients)) % finite_field.PRIME for x in points]
    assert finite_field.evaluate(coefficients, points).tolist() == expected


@settings(max_examples=40)
@given(st.data(), st.integers(min_value=1, max_value=30), st.integers(min_value=1, max_value=3))
def test_interpolate__distinct_points__passes_through_all(data: st.DataObject, k: int, n: int) -> None:
    rows = st.lists(elements, min_size=k, max_size=k, unique=True)
    points = np.array([data.draw(rows) for _ in range(n)], np.int64)
    values = np.array([data.draw(st.lists(elements, min_size=k, max_size=k)) for _ in range(n)], np.int64)
    coefficients = finite_field.interpolate(points, values)
    for row in range(n):
        assert finite_field.evaluate(coefficients[row], points[row]).tolist() == values[row].tolist()


def test_interpolate__largest_elements_and_degree__is_exact() -> None:
    # The float64 products are largest here: 128 points and values just below the field's size.
    points = np.arange(finite_field.PRIME - 128, finite_field.PRIME, dtype=np.int64)[None]
    values = np.full((1, 128), finite_field.PRIME - 1, np.int64)
    assert finite_field.interpolate(points, values).tolist() == [[finite_field.PRIME - 1] + [0] * 127]
