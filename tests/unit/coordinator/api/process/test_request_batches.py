import asyncio
from collections.abc import Sequence

import pytest

from coordinator.api.process.request_batches import MOST, RequestBatches
from covey.errors import CoveyError, ProtocolError, TransientError

pytestmark = pytest.mark.unit


class Doubler:
    """Doubles numbers, refuses negative ones, and notes the batches."""

    def __init__(self, *, is_held: bool = False) -> None:
        """One that is held applies nothing until `may_apply` is set."""
        self.batches: list[list[int]] = []
        self.failure: Exception | None = None
        self.begun, self.may_apply = asyncio.Event(), asyncio.Event()
        if not is_held:
            self.may_apply.set()

    async def __call__(self, items: Sequence[int]) -> list[int | CoveyError]:
        self.batches.append(list(items))
        self.begun.set()
        await asyncio.sleep(0)
        await self.may_apply.wait()
        if self.failure is not None:
            raise self.failure
        return [2 * item if item >= 0 else ProtocolError("negative", str(item)) for item in items]


async def test_add__while_one_is_applied__forms_the_next_batch():
    doubler = Doubler(is_held=True)
    batches = RequestBatches[int, int](doubler)
    first = asyncio.create_task(batches.add(1))
    await doubler.begun.wait()
    others = [asyncio.create_task(batches.add(item)) for item in range(2, 2 + MOST + 3)]
    await asyncio.sleep(0)
    doubler.may_apply.set()
    assert await first == 2
    assert await asyncio.gather(*others) == [2 * item for item in range(2, 2 + MOST + 3)]
    assert [len(batch) for batch in doubler.batches] == [1, MOST, 3]
    assert await batches.add(5) == 10, "it begins again after a pause"


async def test_add__error_of_one_item__is_that_of_its_request_alone():
    batches = RequestBatches[int, int](Doubler())
    found = await asyncio.gather(batches.add(1), batches.add(-1), batches.add(3), return_exceptions=True)
    assert (found[0], found[2]) == (2, 6)
    assert isinstance(found[1], ProtocolError)


async def test_add__batch_fails__tells_all_and_goes_on():
    doubler = Doubler()
    batches = RequestBatches[int, int](doubler)
    doubler.failure = TransientError("database_busy", "as asked")
    found = await asyncio.gather(batches.add(1), batches.add(2), return_exceptions=True)
    assert [error.code for error in found if isinstance(error, CoveyError)] == ["database_busy"] * 2
    doubler.failure = None
    assert await batches.add(3) == 6


async def test_add__defect_in_a_batch__keeps_nobody_waiting():
    doubler = Doubler()
    batches = RequestBatches[int, int](doubler)
    doubler.failure = ZeroDivisionError()
    async with asyncio.timeout(60):
        with pytest.raises(TransientError) as caught:
            await batches.add(1)
    assert caught.value.code == "not_applied"
    running = batches._running
    if running is not None:
        with pytest.raises(ZeroDivisionError):
            await running
    doubler.failure = None
    assert await batches.add(3) == 6


async def test_add__request_is_cancelled__disturbs_no_other():
    doubler = Doubler(is_held=True)
    batches = RequestBatches[int, int](doubler)
    gone, stays = asyncio.create_task(batches.add(1)), asyncio.create_task(batches.add(2))
    await doubler.begun.wait()
    gone.cancel()
    doubler.may_apply.set()
    assert await stays == 4
