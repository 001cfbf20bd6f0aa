"""The bit mask of the questions that a filter kept: values worked out by hand, and the way back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.environments.question_mask import pack_kept, unpack_kept

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([0], "gA=="),  # 1000 0000
        ([0, 1, 7], "wQ=="),  # 1100 0001
        ([8], "AIA="),  # 0000 0000 1000 0000
        ([2, 10, 23], "ICAB"),  # 0010 0000 0010 0000 0000 0001
    ],
)
def test_pack_kept__numbers__by_hand(numbers: list[int], text: str) -> None:
    assert pack_kept(numbers) == text
    assert unpack_kept(text) == numbers


@given(st.sets(st.integers(min_value=0, max_value=5000)))
def test_unpack_kept__any_packed_numbers__come_back(numbers: set[int]) -> None:
    assert unpack_kept(pack_kept(numbers)) == sorted(numbers)


def test_pack_kept__eighty_thousand_questions__fit_into_a_pools_parameters() -> None:
    assert len(pack_kept(range(0, 80_000, 3))) < 13_400


@pytest.mark.parametrize("text", ["gA", "*", "gA==\n", "AA==", "gAA=", "gE==", "é"])
def test_unpack_kept__another_spelling_or_invalid_base64__is_refused(text: str) -> None:
    """Equal sets of questions have one spelling, so that equal pools have one hash."""
    with pytest.raises(ValueError, match="kept"):
        unpack_kept(text)
