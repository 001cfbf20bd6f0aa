import pytest

from covey.sandbox import CallLimits
from covey.sandbox.zygote_messages import Ending, Started, ZygoteOrder

pytestmark = pytest.mark.unit


def test_messages__to_json_and_back__are_equal():
    order = ZygoteOrder(
        function="a:b", limits=CallLimits(cpu_seconds=0.5), scratch="/s", mounts_scratch=True, readable=("/usr",),
        writable=("/s",), has_filter=True, shares_user=False,
    )  # fmt: skip
    read = ZygoteOrder.from_json(order.to_json())
    assert (read.limits, read.function, list(read.readable), read.mounts_scratch) == (
        order.limits, "a:b", ["/usr"], True,
    )  # fmt: skip
    started = Started(kind="operator", code="c", message="m\n\0", fix="f")
    assert Started.from_json(started.to_json()) == started
    ending = Ending(cause="cpu", status=9, cpu_seconds=0.25, peak_bytes=5, is_clean=False)
    assert Ending.from_json(ending.to_json()) == ending
