"""What a worker can rely on, tested with the real coordinator and with the fake of the worker's tests."""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from covey.errors import ProtocolError
from covey.protocol import canonical, eip712
from covey.protocol.api.worker import SubmissionResponse, TaskOrder
from covey.protocol.eip712 import Domain
from covey.protocol.messages import Receipt
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.network import CoordinatorHarness
from tests.fakes.pool import INSTANCE
from tests.fakes.tools import make_task
from worker.receipts import require_promise

pytestmark = pytest.mark.integration
FILE = b"the rows"


@dataclass(frozen=True, kw_only=True)
class Party:
    """The real coordinator or the fake, with its helpers."""

    client: object
    claim: Callable[[], Awaitable[TaskOrder | None]]
    harness: CoordinatorHarness
    ledger_domain: Domain
    receipt_domain: Domain

    def receipt(self, order: TaskOrder, file: bytes, **changes: object) -> Receipt:
        values = {
            "pool": self.harness.ctx.ledger.pool,
            "task": order.task,
            "lease": order.lease,
            "node": self.harness.wallet("node").address,
            "contributor": self.harness.chain.address("contributor"),
            "policy_version": order.policy_version,
            "work_key": canonical.sha256(file),
            "groups": order.groups,
            "units": 8,
            "deadline": int(self.harness.clock()) + 999,
        }
        return Receipt(**(values | changes))

    async def submit(self, receipt: Receipt, file: bytes, signer: str = "node") -> SubmissionResponse:
        signature = eip712.sign(receipt, self.receipt_domain, self.harness.wallet(signer))
        return await self.client.submit(receipt, signature, file)


@pytest.fixture(params=["real", "fake"])
async def party(request: pytest.FixtureRequest, harness: CoordinatorHarness) -> AsyncIterator[Party]:
    domains = {"ledger_domain": harness.ctx.ledger_domain, "receipt_domain": harness.ctx.receipt_domain}
    if request.param == "fake":
        client = FakeCoordinator(
            node=harness.wallet("node").address, operator=harness.ctx.signer, orders=[make_task()], **domains
        )
        claim = lambda: client.claim_task(instance=INSTANCE, free_slots=1, cached_version=None, wait_seconds=0)  # noqa: E731
        yield Party(client=client, claim=claim, harness=harness, **domains)
        return
    async with harness.client("node") as real:
        await real.register()
        yield Party(
            client=real, claim=lambda: harness.claim(real), harness=harness, **domains,
        )  # fmt: skip


async def code_of(waiting: Awaitable[object]) -> str:
    with pytest.raises(ProtocolError) as caught:
        await waiting
    return caught.value.code


async def test_submit__lawful__gives_a_promise_that_a_worker_accepts(party: Party):
    task = await party.claim()
    receipt = party.receipt(task, FILE)
    answer = await party.submit(receipt, FILE)
    operator = party.harness.ctx.signer.address
    require_promise(
        answer,
        receipt,
        domain=party.ledger_domain,
        signer=operator,
        first_time=answer.signed_at,
        now=answer.signed_at,
        draw_seconds=1,
        epoch_length=party.harness.ctx.ledger.epoch_length,
    )


async def test_submit__unchanged_again__gives_the_same_answer(party: Party):
    receipt = party.receipt(await party.claim(), FILE)
    assert await party.submit(receipt, FILE) == await party.submit(receipt, FILE)


async def test_submit__changed__is_refused_with_the_code_that_says_how(party: Party):
    task = await party.claim()
    receipt = party.receipt(task, FILE)
    await party.submit(receipt, FILE)
    assert await code_of(party.submit(dataclasses.replace(receipt, units=7), FILE)) == "duplicate_submission"
    assert await code_of(party.submit(party.receipt(task, b"other"), b"other")) == "equivocation"


async def test_submit__signed_by_another__is_refused(party: Party):
    receipt = party.receipt(await party.claim(), FILE)
    assert await code_of(party.submit(receipt, FILE, signer="node-2")) == "bad_signature"


async def test_submit__lease_that_is_none__is_refused(party: Party):
    task = await party.claim()
    assert await code_of(party.submit(party.receipt(task, FILE, lease=task.lease + 1), FILE)) == "lease_expired"
    assert await code_of(party.submit(party.receipt(task, FILE, task=12345), FILE)) == "unknown_task"


async def test_submit__file_of_another_hash__is_refused(party: Party):
    receipt = party.receipt(await party.claim(), FILE)
    assert await code_of(party.submit(receipt, b"not the rows"[: len(FILE)])) == "digest_mismatch"


async def test_claim_task__another_worker_with_the_key__is_refused_in_every_request(party: Party):
    await party.claim()
    other = {"instance": "f" * 32, "free_slots": 1, "cached_version": None}
    assert await code_of(party.client.claim_task(wait_seconds=0, **other)) == "another_instance"
    assert await code_of(party.client.send_heartbeat(**other)) == "another_instance"


async def test_return_task__lease_in_hand__ends_it_and_only_once(party: Party):
    task = await party.claim()
    await party.client.return_task(task.task, task.lease)
    assert await code_of(party.submit(party.receipt(task, FILE), FILE)) == "lease_expired"
    assert await code_of(party.client.return_task(task.task, task.lease)) == "lease_expired"
