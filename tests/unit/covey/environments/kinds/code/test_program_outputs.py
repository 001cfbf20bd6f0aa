"""Comparison of outputs, with values worked out by hand."""

import pytest

from covey.environments.kinds.code.program_outputs import is_same_text, is_same_value, parse_value

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("5", "5\n"),
        ("5 \n\n", "5"),
        ("a\r\nb", "a\nb"),
        ("  1  2", "1 2"),
        ("", "\n"),
        ("1.0", "1"),
        ("1e3", "1000"),
        ("-0", "0"),
        (".5", "0.50"),
        ("3.1415927", "3.1415926"),  # relative difference 3e-8
        ("0.0", "-0.0000000000001"),
        ("x 2.0", "x 2"),
        ("9" * 100_000, "9" * 100_000),
        ("1" * 1_000_001 + ".0", "1" * 1_000_001),  # beyond the exponents of the usual context
    ],
)
def test_is_same_text__same__is_true(written, expected):
    assert is_same_text(written, expected)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("5", "6"),
        ("", "5"),
        ("5\n6", "5 6"),
        ("5\n\n6", "5\n6"),
        ("5 6", "5"),
        ("011", "11"),
        ("50000000000000001", "50000000000000000"),
        ("1000001", "1000000.5"),  # only one of them has a decimal point
        ("1.00001", "1.0"),  # relative difference 1e-5
        ("yes", "YES"),
        ("nan", "0.0"),
        ("Infinity", "1.0"),
        ("1_000", "1000"),
        ("1e99999", "1e99998"),
        ("\u0661", "1"),  # a digit of another script
        ("9" * 100_000 + "8", "9" * 100_001),
        ("2" * 1_000_001 + ".0", "1" * 1_000_001 + ".0"),
    ],
)
def test_is_same_text__different__is_false(written, expected):
    assert not is_same_text(written, expected)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (1, 1.0),
        (1.0, 1),
        (0.1 + 0.2, 0.3),
        (1e-16, 0.0),
        (5, [5]),
        ([5], [5]),
        ([[1, 2]], [[1, 2]]),
        ([1, 2], [[1, 2]]),
        (None, None),
        ({"a": [1, 2.0]}, {"a": [1.0, 2]}),
        ("x", "x"),
        (True, True),
    ],
)
def test_is_same_value__same__is_true(result, expected):
    assert is_same_value(result, expected)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (True, 1),
        (1, True),
        (0, False),
        ("1", 1),
        (None, 0),
        ([], None),
        ([1], 1),
        (5, [5, 6]),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        (1.00001, 1.0),
        (1.0000001, 1),  # an integer is exact
        (10**17 + 1, 10**17),
        ([True], [1]),
    ],
)
def test_is_same_value__different__is_false(result, expected):
    assert not is_same_value(result, expected)


@pytest.mark.parametrize("output", [b"", b"5 5", b"NaN", b"-Infinity", b"\xff", b"[", b"{1: 2}", b"[Infinity]"])
def test_parse_value__what_is_not_json__raises(output):
    with pytest.raises(ValueError):  # noqa: PT011 - errors of json, whose text is not ours
        parse_value(output)


LONG = "7" * 1_000_000


def test_parse_value__integers_with_a_million_digits__are_compared_exactly():
    """Conversion to an integer would take minutes."""
    assert is_same_value(parse_value(f"[-{LONG}]".encode()), parse_value(f"[-{LONG}]"))
    assert not is_same_value(parse_value(f"{LONG}7".encode()), parse_value(f"{LONG}8"))
    assert not is_same_value(parse_value(LONG), 7.0)
    assert not is_same_value(parse_value(LONG), 7)
    assert is_same_value(parse_value("-" + "7" * 4300), int("-" + "7" * 4300))
