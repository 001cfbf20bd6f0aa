"""Compares the output of a program with the expected output.

Text is compared as in LiveCodeBench's testing_util.py (`grade_stdio`): line by line without surrounding
whitespace, then token by token as exact decimals. There are two differences. A number with a leading zero is
compared as a string, because "011" and "11" are different bit strings. Two numbers with a decimal point may
differ by rounding. TACO's testing_util.py allows that for all numbers (`numpy.allclose`), even for large
integers.

Results of functions are compared together with their types. As in TACO, an expected list with one element is
also matched by that element itself.
"""

import json
import math
import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import NoReturn

from pydantic import JsonValue

MAX_INT_DIGITS = 4300
"""Maximum number of digits that Python converts to an integer by default, because it takes quadratic time."""
TOLERANCE = 1e-6
"""Relative difference up to which two floats count as equal."""
_NOISE = 1e-12
"""Absolute difference of two floats that counts as rounding noise, even if one of them is 0."""
_ROUNDED = Context(prec=28, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
"""Arithmetic for differences, which never overflows: an output may have millions of digits."""
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def is_same_text(written: str, expected: str) -> bool:
    """Return whether two outputs have the same lines, ignoring whitespace around them and the spelling of numbers."""
    written_lines, expected_lines = (text.strip().split("\n") for text in (written, expected))
    return len(written_lines) == len(expected_lines) and all(map(_is_same_line, written_lines, expected_lines))


def is_same_value(result: JsonValue, expected: JsonValue) -> bool:
    """Return whether a function's result equals the expected value, or the only element of an expected list."""
    if _is_equal(result, expected):
        return True
    return isinstance(expected, list) and len(expected) == 1 and _is_equal(result, expected[0])


def parse_value(text: bytes | str) -> JsonValue:
    """Parse the result of a function. Raises ValueError or RecursionError if it is not plain JSON.

    An integer with more than `MAX_INT_DIGITS` digits becomes a Decimal, which is read and compared in linear time.
    """
    value: JsonValue = json.loads(text, parse_constant=_refuse, parse_int=_parse_int)
    return value


def _parse_int(digits: str) -> int | Decimal:
    return int(digits) if len(digits.removeprefix("-")) <= MAX_INT_DIGITS else Decimal(digits)


def _is_same_line(written: str, expected: str) -> bool:
    if written.strip() == expected.strip():
        return True
    written_tokens, expected_tokens = written.split(), expected.split()
    return len(written_tokens) == len(expected_tokens) and all(map(_is_same_token, written_tokens, expected_tokens))


def _is_same_token(written: str, expected: str) -> bool:
    if written == expected:
        return True
    if not (_NUMBER.fullmatch(written) and _NUMBER.fullmatch(expected)):
        return False
    left, right = Decimal(written), Decimal(expected)
    if left == right:
        return True
    if "." not in written or "." not in expected:
        return False
    difference = _ROUNDED.abs(_ROUNDED.subtract(left, right))
    return difference <= _ROUNDED.fma(Decimal(str(TOLERANCE)), _ROUNDED.abs(right), Decimal(str(_NOISE)))


def _is_equal(result: JsonValue, expected: JsonValue) -> bool:
    if isinstance(result, bool) or isinstance(expected, bool):
        return result is expected
    if isinstance(result, float) and isinstance(expected, float):
        return math.isclose(result, expected, rel_tol=0, abs_tol=TOLERANCE * abs(expected) + _NOISE)
    if isinstance(result, int | float) and isinstance(expected, int | float):
        return result == expected
    if isinstance(result, list) and isinstance(expected, list):
        return len(result) == len(expected) and all(map(_is_equal, result, expected))
    if isinstance(result, dict) and isinstance(expected, dict):
        return result.keys() == expected.keys() and all(_is_equal(result[key], expected[key]) for key in expected)
    return type(result) is type(expected) and result == expected


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
