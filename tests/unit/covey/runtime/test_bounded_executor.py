import asyncio
import threading

import pytest

from covey.errors import TransientError
from covey.runtime.bounded_executor import BoundedExecutor

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


async def test_run__result_and_error__are_those_of_the_call():
    lane = BoundedExecutor("store", threads=1, patience_s=HANG_S)
    assert await lane.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0)
    lane.close()


async def test_run__dependency_hangs__is_given_up_and_other_lanes_go_on():
    release = threading.Event()
    hanging, other = (
        BoundedExecutor("store", threads=1, patience_s=0.05, waiting=2),
        BoundedExecutor("chain", threads=1, patience_s=HANG_S),
    )
    calls = [asyncio.create_task(hanging.run(release.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    assert await other.run(lambda: 7) == 7
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [(type(error), error.code) for error in errors] == [(TransientError, "dependency_slow")] * 3
    assert "2 calls wait for the store already" in str(errors[2])
    release.set()
    async with asyncio.timeout(HANG_S):
        while True:  # The calls that were given up have to end before others may begin.
            try:
                assert await hanging.run(lambda: 8) == 8
                break
            except TransientError:
                await asyncio.sleep(0.01)
    hanging.close()
    other.close()
