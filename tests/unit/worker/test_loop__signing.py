"""A worker signs only work of a policy that the chain holds, and only while its disk has room."""

from collections.abc import Callable
from pathlib import Path

import pytest

from covey.errors import ProtocolError, TransientError
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.tools import make_task
from worker import loop, submission_store
from worker.context import Context

pytestmark = pytest.mark.unit
Start = Callable[..., Context]


async def make_one(start: Start, coordinator: FakeCoordinator) -> Context:
    """Build a worker whose engine has finished one task."""
    ctx = start()
    coordinator.orders.append(make_task())
    await loop.claim(ctx)
    await loop.work(ctx)
    assert len(ctx.leases.generated) == 1
    return ctx


async def test_sign_next__chain_that_was_reorganised_meanwhile__signs_nothing_and_returns_the_lease(
    start: Start, coordinator: FakeCoordinator
):
    """Judged by the policy that the chain holds now, honest work of the replaced one would look like fraud."""
    ctx = await make_one(start, coordinator)
    ctx.network.policies.get_record_hash = lambda version: "0x" + "ab" * 32
    with pytest.raises(ProtocolError, match="wrong_record"):
        await loop.sign_next(ctx)
    assert (list(ctx.submissions.list()), coordinator.returned, ctx.leases.generated) == ([], [(7, 9)], [])


@pytest.mark.parametrize("moment", ["add", "close"])
async def test_sign_next__full_disk__raises_keeps_the_lease_and_continues_when_there_is_room(
    start: Start, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, moment: str
):
    ctx = await make_one(start, coordinator)
    if moment == "close":
        await loop.sign_next(ctx)

    def fail(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(submission_store, "write_atomically", fail)
        with pytest.raises(TransientError, match=r"disk_full: .*No space left"):
            await (loop.sign_next(ctx) if moment == "add" else loop.submit_pending(ctx))
    assert coordinator.returned == []
    if moment == "add":
        await loop.sign_next(ctx)
    await loop.submit_pending(ctx)
    assert {receipt.task for receipt, _, _ in coordinator.sent} == {7}
    assert (ctx.submissions.list_unsent(), ctx.submissions.has_signed(7, 9)) == ([], True)
