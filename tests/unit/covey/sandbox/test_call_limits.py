import pytest

from covey.sandbox import CallLimits

pytestmark = pytest.mark.unit


def test_for_cpu__wall_clock__is_six_times_the_cpu_time():
    limits = CallLimits.for_cpu(0.5, memory_bytes=7)
    assert (limits.cpu_seconds, limits.wall_seconds, limits.memory_bytes) == (0.5, 3.0, 7)


@pytest.mark.parametrize("name", list(CallLimits.__dataclass_fields__))
def test_limits__zero__is_refused(name: str):
    with pytest.raises(ValueError, match=name):
        CallLimits(**{name: 0})
