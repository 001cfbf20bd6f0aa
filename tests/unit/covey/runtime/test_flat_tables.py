"""Names of nested tables, and where two of them differ."""

import pytest

from covey.runtime.flat_tables import compare, flatten

pytestmark = pytest.mark.unit
VALUES = {"steps": 5, "optim": {"betas": [0.9, 0.99], "more": {"a": None}}, "options": {}}


def test_flatten__nested_tables__have_dotted_names_and_empty_ones_none():
    assert flatten(VALUES) == {"steps": 5, "optim.betas": [0.9, 0.99], "optim.more.a": None}


def test_flatten__lists_too__have_numbers_as_names():
    flat = flatten(VALUES | {"parts": [{"a": 1}, {"a": 2}]}, splits_lists=True)
    assert flat == {
        "steps": 5, "optim.betas.0": 0.9, "optim.betas.1": 0.99, "optim.more.a": None, "parts.0.a": 1, "parts.1.a": 2,
    }  # fmt: skip


def test_compare__other_and_missing_values__are_named_in_order():
    assert [*compare({"b": 1, "a": 2, "c": 3}, {"c": 3, "d": 0, "b": 4})] == [
        ("a", 2, None),
        ("b", 1, 4),
        ("d", None, 0),
    ]
