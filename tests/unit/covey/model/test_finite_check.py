"""NaN and Inf are found wherever they are, and nothing else is."""

import pytest
import torch

from covey.model import finite_check
from covey.model.finite_check import find_ranges, is_finite

pytestmark = pytest.mark.unit

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", [0, 6, 7, 20])
def test_is_finite__one_value_that_is_not__is_found(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, place: int
) -> None:
    monkeypatch.setattr(finite_check, "_CACHED", 7)  # 21 values in three parts
    limits = torch.finfo(dtype)
    usual = torch.tensor([0.0, -0.0, limits.max, limits.min, limits.tiny, -limits.eps, -1.0] * 3, dtype=dtype)
    assert is_finite(usual)
    assert is_finite(usual.reshape(3, 7).T)
    for value in (float("nan"), float("inf"), float("-inf")):
        changed = usual.clone()
        changed[place] = value
        assert not is_finite(changed)
        assert not is_finite(changed.reshape(3, 7).T)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_is_finite__every_pattern_of_16_bits__agrees_with_torch(dtype: torch.dtype) -> None:
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    expected = values.isfinite().tolist()
    assert [is_finite(value) for value in values[:, None]] == expected


def test_is_finite__no_values_or_a_scalar__is_answered() -> None:
    assert is_finite(torch.empty(0, 4))
    assert is_finite(torch.tensor(1.0))
    assert not is_finite(torch.tensor(float("nan")))


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 0.0])
@pytest.mark.parametrize("place", [0, 6, 20])
def test_find_ranges__one_value__agrees_with_torch(dtype: torch.dtype, value: float, place: int) -> None:
    tensor = torch.linspace(-2.5, 7.5, 21).to(dtype)
    tensor[place] = value
    found = find_ranges(tensor.reshape(3, 7))
    assert bool(found.isfinite().all()) == bool(tensor.isfinite().all())
    if value == 0:
        assert found.tolist() == [tensor.min(), tensor.max()]


def test_find_ranges__no_values__are_finite() -> None:
    assert find_ranges(torch.empty(0, 4)).tolist() == [0, 0]
