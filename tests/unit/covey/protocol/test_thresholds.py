"""Limits that hold for two kinds of honest work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from covey.protocol.thresholds import Pooled, Thresholds

pytestmark = pytest.mark.unit
sizes = st.floats(0, 5)
pooled = st.none() | st.builds(Pooled, mean=sizes, variance=sizes, largest=sizes, items=st.integers(1, 10**6))
thresholds = st.builds(
    Thresholds, exponent_max=st.integers(0, 99), margin_max=sizes, logprob_max=sizes, exponent=pooled, logprob=pooled
)


@given(thresholds, thresholds, st.integers(1, 5000))
def test_widen__two_limits__work_that_keeps_one_keeps_both(one: Thresholds, other: Thresholds, count: int) -> None:
    both = one.widen(other)
    assert both == other.widen(one)
    for each in (one, other):
        assert both.exponent_max >= each.exponent_max
        assert both.margin_max >= each.margin_max
        assert both.logprob_max >= each.logprob_max
        for name in ("exponent", "logprob"):
            wide, narrow = getattr(both, name), getattr(each, name)
            if narrow is None:
                assert wide is None
            elif wide is not None:
                assert wide.compute_limit(count, 1e-6) >= narrow.compute_limit(count, 1e-6)
                assert wide.compute_mean_error(1e-6) >= narrow.compute_mean_error(1e-6) * (1 - 1e-9) - 1e-9


def test_widen__equal_limits__change_nothing() -> None:
    assert Thresholds().widen(Thresholds()) == Thresholds()


def test_pooled__variance_without_a_number_of_items__is_refused() -> None:
    """Without it the limit of running sums would leave out the error of the mean."""
    with pytest.raises(ValidationError, match=r"the number of items is missing\. Copy `items` from the output"):
        Thresholds.model_validate({"mantissa": {"mean": 0.5, "variance": 0.01, "largest": 0.3}})
    assert Pooled(mean=0.5, variance=0.01, items=1).compute_mean_error(1e-6) > 0


def test_compute_mean_error__by_hand__shrinks_with_the_items_and_is_none_for_a_stated_bound() -> None:
    """Without variance it is twice the linear part, 0.3 L / 3 with L = ln(1e6), per item."""
    estimated = Pooled(mean=0.5, largest=0.3, items=100)
    assert estimated.compute_mean_error(1e-6) == pytest.approx(2 * 0.1 * 13.8155 / 100, abs=1e-6)
    assert Pooled(mean=0.5, largest=0.3).compute_mean_error(1e-6) == 0


@pytest.mark.parametrize(("one", "other", "items"), [(0, 0, 0), (0, 9, 9), (7, 0, 7), (7, 9, 7)])
def test_widen__numbers_of_items__the_least_certain_mean_counts(one: int, other: int, items: int) -> None:
    assert Pooled(mean=1.0, items=one).widen(Pooled(mean=0.5, items=other)) == Pooled(mean=1.0, items=items)
