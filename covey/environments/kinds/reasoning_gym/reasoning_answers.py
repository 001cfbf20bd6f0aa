"""Decides which answers may reach the scoring functions of reasoning-gym.

Some generators' scoring functions evaluate an answer as Python, with `eval` or with sympy's `parse_expr`,
which calls `eval`. Such an answer could replace its own grader. It is therefore scored only if it calls no
function that is not listed here and accesses no attribute.
"""

import re
from collections.abc import Mapping
from typing import Any

_LITERALS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_- \n")
"""Letters, digits and a few other characters. An expression without brackets, points and quotes has no side
effects.
"""
_ARITHMETIC = frozenset("0123456789+-*/(). \n")
_ALGEBRA = _ARITHMETIC | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz,")
CHARACTERS = {
    "binary_matrix": _LITERALS,
    "n_queens": _LITERALS,
    "spiral_matrix": _LITERALS,
    "string_insertion": _LITERALS,
    "countdown": _ARITHMETIC,
    "puzzle24": _ARITHMETIC,
    "intermediate_integration": _ALGEBRA,
    "polynomial_multiplication": _ALGEBRA,
    "simple_integration": _ALGEBRA,
}
"""Characters that an answer may contain, by generator. Generators that do not evaluate answers have none."""
FUNCTIONS = frozenset({
    "Abs", "acos", "asin", "atan", "cos", "cosh", "cot", "csc", "exp", "ln", "log", "pi", "sec", "sin", "sinh", "sqrt",
    "tan", "tanh",
})  # fmt: skip
"""Names of two or more letters that an algebraic expression may contain. A single letter is a variable."""
_WORD = re.compile("[A-Za-z]{2,}")
_NUMBER = re.compile("[0-9]{1,9}")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z]")


def uses_given_numbers(generator: str, answer: str, metadata: Mapping[str, Any]) -> bool:
    """Return whether an answer to a puzzle24 item uses exactly the given numbers, which its scoring does not check.

    The result is True for every other generator.
    """
    return generator != "puzzle24" or sorted(map(int, _NUMBER.findall(answer))) == sorted(metadata["numbers"])


def is_harmless(generator: str, answer: str) -> bool:
    """Return whether a generator's scoring function may receive this answer. It takes linear time."""
    characters = CHARACTERS.get(generator)
    if characters is None:
        return True
    if not characters.issuperset(answer):
        return False
    is_algebra = characters is _ALGEBRA
    return not is_algebra or (FUNCTIONS.issuperset(_WORD.findall(answer)) and not _ATTRIBUTE.search(answer))
