"""A worker signs only work of a policy that the chain holds, and only while its disk has room."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.canonical import sha256
from covey.protocol.submission_file.codec import decode
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.pool import make_contract
from tests.fakes.tools import make_task
from worker import loop, submission_store
from worker.context import Context

pytestmark = pytest.mark.unit
Start = Callable[..., Context]


async def make_one(start: Start, coordinator: FakeCoordinator, **changes: Any) -> Context:
    """Build a worker whose engine has finished one task."""
    ctx = start(**changes)
    coordinator.orders.append(make_task())
    await loop.claim(ctx)
    await loop.work(ctx)
    assert len(ctx.leases.generated) == 1
    return ctx


async def test_sign_next__exact_lane__each_row_names_the_contract_and_the_receipt_covers_it(
    start: Start, coordinator: FakeCoordinator
):
    contract = make_contract().digest
    ctx = await make_one(start, coordinator, contract=contract)
    await loop.sign_next(ctx)
    (submission,) = ctx.submissions.list()
    rows = decode(submission.file, ctx.network.params.build_budget())
    assert {row.contract for row in rows} == {contract}
    assert sha256(submission.file) == submission.receipt.work_key


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


async def test_submit_pending__operator_that_refuses_all_work__stops_the_worker_and_leaves_the_receipts(
    start: Start, coordinator: FakeCoordinator
):
    """An operator could take the files and promise nothing, and the worker would go on for ever."""
    ctx = await make_one(start, coordinator)
    await loop.sign_next(ctx)
    (submission,) = ctx.submissions.list()
    submission = dataclasses.replace(submission, first_time=int(ctx.clock()))
    coordinator.leased.clear()
    for number in range(loop.REFUSALS):
        receipt = dataclasses.replace(submission.receipt, lease=100 + number)
        ctx.submissions.add(dataclasses.replace(submission, receipt=receipt))
    ctx.submissions.close(submission, ProtocolError("stale", "too old"))
    with pytest.raises(OperatorError, match=r"work_refused: .* 8 submissions in a row, the last one for lease_expired"):
        await loop.submit_pending(ctx)
    assert len(list(ctx.submissions.list())) == 1, "the last one is sent when the worker starts again"
    assert len(ctx.submissions.list_refused()) == loop.REFUSALS
