"""Limits that hold for two kinds of honest work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.thresholds import Pooled, Thresholds

pytestmark = pytest.mark.unit
sizes = st.floats(0, 5)
pooled = st.none() | st.builds(Pooled, mean=sizes, variance=sizes, largest=sizes)
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


def test_widen__equal_limits__change_nothing() -> None:
    assert Thresholds().widen(Thresholds()) == Thresholds()
