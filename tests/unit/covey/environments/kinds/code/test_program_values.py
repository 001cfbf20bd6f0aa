"""Values across the border between a program and its assertions, and data that a program may forge."""

import datetime
import decimal
import fractions
import json
import math
import sys

import pytest

from covey.environments.kinds.code.program_values import ListNode, TreeNode, decode, encode, list_levels, list_values

pytestmark = pytest.mark.unit


def refuse(value):
    raise TypeError(type(value))


VALUES = [
    None,
    True,
    10**5000,
    "\ud800",
    1.5,
    -0.0,
    math.inf,
    [1, [2]],
    (1, (2, [3])),
    {1, "a"},
    frozenset({(1, 2)}),
    {1: {"a": (1,)}, (2, 3): None, "tuple": 1},
    b"\x00\xff",
    bytearray(b"a"),
    1j,
    complex(math.inf, -0.0),
    range(1, 10, 2),
    decimal.Decimal("1.10"),
    fractions.Fraction(1, 3),
    datetime.date(2020, 2, 29),
    datetime.datetime(2020, 2, 29, 1, 2, 3, 4, datetime.UTC),
    datetime.timedelta(-1, 5, 6),
    int,
    dict,
]


@pytest.fixture(autouse=True)
def long_integers():
    """The processes on both sides of the border have no limit on digits."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_encode__value_of_every_type__comes_back_as_the_same(value):
    back = decode(json.loads(json.dumps(encode(value, refuse))), refuse, {})
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_encode__not_a_number__comes_back():
    assert math.isnan(decode(encode(math.nan, refuse), refuse, {}))


def test_encode__other_values__stay_and_are_represented_by_a_number():
    kept = []
    data = encode([object, len, ValueError("x")], lambda value: kept.append(value) or len(kept))
    assert data == [{"object": 1}, {"object": 2}, {"object": 3}]
    assert decode(data, lambda number: kept[number - 1], {}) == kept


def test_decode__lists_and_trees__are_built_with_the_classes_at_hand():
    class Own:
        def __init__(self, val):
            self.val = val

    head = decode({"ListNode": [1, {"tuple": [2]}]}, refuse, {"ListNode": Own})
    assert type(head) is type(head.next) is Own
    assert list_values(head) == [1, (2,)]
    root = decode({"TreeNode": [1, None, 2, 3]}, refuse, {"TreeNode": "not a class"})
    assert type(root) is TreeNode
    assert (root.left, root.right.val, root.right.left.val) == (None, 2, 3)
    assert encode(root, refuse) == {"TreeNode": [1, None, 2, 3]}
    assert decode({"ListNode": []}, refuse, {}) is None
    assert list_levels(None) == []


def test_encode__list_that_contains_itself__raises():
    node = ListNode(1)
    node.next = node
    with pytest.raises(ValueError, match="contains itself"):
        encode(node, refuse)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"int": 5},
        {"a": 1, "b": 2},
        {"tuple": 5},
        {"set": [[1]]},
        {"dict": [[1]]},
        {"dict": [[[], 1]]},
        {"float": "1.5"},
        {"float": ["nan"]},
        {"complex": [1, 2]},
        {"complex": [1.0]},
        {"range": ["a"]},
        {"range": [1, 2, 0]},
        {"type": "object"},
        {"type": "__import__"},
        {"bytes": "xy"},
        {"Decimal": "x"},
        {"Decimal": 5},
        {"date": "2020-02-30"},
        {"date": 5},
        {"timedelta": [1]},
        {"Fraction": "1/0"},
        {"os": "x"},
        {"TreeNode": [1, None, None, 2]},
        {"object": 1},
    ],
)
def test_decode__forged_data__raises(data):
    with pytest.raises((ValueError, TypeError, LookupError, ArithmeticError)):
        decode(data, refuse, {})
