"""Exact arithmetic and numbers in answers to puzzles. Labelled answers are in test_reasoning_gym__labels."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.environments.kinds.reasoning_gym.puzzle_checks import CHECKS, compute, read_number

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("expression", "value", "numbers"),
    [
        ("1/3 + 1/3 + 1/3", Fraction(1), [1, 1, 1, 3, 3, 3]),
        ("2*(3 - 4)/3 + +5 - -1", Fraction(16, 3), [1, 2, 3, 3, 4, 5]),
        (" 66 ", Fraction(66), [66]),
    ],
)
def test_compute__arithmetic__is_exact(expression: str, value: Fraction, numbers: list[int]) -> None:
    computed = compute(expression)
    assert computed is not None
    assert (computed[0], sorted(computed[1])) == (value, numbers)


@pytest.mark.parametrize(
    "text",
    ["", "1/0", "2**3", "7//2", "1 2", "(1", "1.5", "1e3", "0x1", "1_0", "x", "()", "1,2", "(1)(2)", "1\n+2", "\u0661",
     "(" * 100 + "1" + ")" * 100 + "*", "1+" * 400 + "1", "05"],
)  # fmt: skip
def test_compute__anything_else__is_none(text: str) -> None:
    assert compute(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.3125", Fraction(5, 16)),
        (" 5/16 ", Fraction(5, 16)),
        ("-1,234.5", Fraction(-2469, 2)),
        (".5", Fraction(1, 2)),
        ("1e-3", Fraction(1, 1000)),
        ("72.5\u00b0", Fraction(145, 2)),
        ("5/0", None),
        ("1e9999", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("E5", None),
        (".", None),
        ("-", None),
        ("1,23", None),
        ("1/2/3", None),
        ("5 6", None),
        ("5%", None),
        ("9" * 1000, None),
    ],
)
def test_read_number__examples(text: str, value: Fraction | None) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("-2", True), ("- 2.00", True), ("(-2)", True), ("-2 + 0i", True), ("--2", False), ("+-2", False),
        ("-+2", False), ("-2+", False), ("-2 -", False), ("-", False), ("", False), ("2", False),
    ],
)  # fmt: skip
def test_complex_arithmetic__each_part__has_one_sign(answer: str, is_right: bool) -> None:
    assert CHECKS["complex_arithmetic"](answer, {"metadata": {"result": (-2.0, 0.0)}}) == is_right
    assert not CHECKS["complex_arithmetic"](answer, {"metadata": {"result": (3.0, 0.0)}})


@given(st.text(alphabet='0123456789.,/eE+-ij()*[]{}" \n\u00b0xABw', max_size=40))
def test_checks__any_text__never_raise(text: str) -> None:
    entries = {
        "complex_arithmetic": {"result": (3.0, -2.0)},
        "countdown": {"target": 10**9, "numbers": [7, 7, 7]},
        "puzzle24": {"numbers": [7, 7, 7, 7]},
        "graph_color": {"puzzle": {"vertices": [0, 1], "edges": [(0, 1)], "color_options": [1]}},
        "rush_hour": {"board_config": "oxoCCCDDDoIJAAHoIJoGHoEEoGFFFKoooooK"},
        "survo": {"puzzle": [[0, 1], [1, 1]], "candidate_numbers": [9]},
    }
    read_number(text)
    assert entries.keys() == CHECKS.keys()
    for name, metadata in entries.items():
        assert isinstance(CHECKS[name](text, {"metadata": metadata}), bool)
