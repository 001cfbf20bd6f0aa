"""Receipts, files and verdicts that workers and validators send, for tests of the API."""

from typing import Any

import pytest

from covey.errors import ProtocolError
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol import canonical, eip712, messages
from covey.protocol.api.common import ReceiptBody, VerdictBody
from covey.protocol.api.validator import JudgeOrder, RevealOrder, RevealRequest
from covey.protocol.api.worker import SubmissionRequest, SubmissionResponse, TaskOrder, UploadGrant, UploadRequest
from covey.protocol.evidence import Bundle, EngineFacts
from covey.protocol.messages import Receipt, Verdict
from covey.protocol.running_sums import PER_WINDOW, STATISTICS, ItemSum
from covey.protocol.verdict import Decision, Reason, Severity
from tests.fakes.network import CoordinatorHarness
from tests.fakes.pool import make_hash

FILE = b"rows " * 100
SUMS = {name: ItemSum(total=1e-5, items=4 if name in PER_WINDOW else 20) for name in STATISTICS}
"""Sums over four rows of 20 tokens together."""
REJECT = {"outcome": 2, "reason": int(Reason.PROOF), "severity": 2, "units": 0}
"""Changes that make a verdict a hard rejection."""


def build_receipt(
    harness: CoordinatorHarness, task: TaskOrder, file: bytes, *, node: str = "node", **changes: Any
) -> Receipt:
    values: dict[str, Any] = {
        "pool": harness.ctx.ledger.pool,
        "task": task.task,
        "lease": task.lease,
        "node": harness.wallet(node).address,
        "contributor": harness.chain.address("contributor"),
        "policy_version": task.policy_version,
        "work_key": canonical.sha256(file),
        "groups": task.groups,
        "units": 20,
        "deadline": int(harness.clock()) + 86_400,
    }
    return Receipt(**(values | changes))


def sign(harness: CoordinatorHarness, receipt: Receipt, node: str = "node") -> str:
    return eip712.sign(receipt, harness.ctx.receipt_domain, harness.wallet(node))


async def refuse(waiting: Any) -> tuple[str, int]:
    with pytest.raises(ProtocolError) as caught:
        await waiting
    return caught.value.code, caught.value.status


async def hand_in(
    harness: CoordinatorHarness,
    client: CoordinatorClient,
    file: bytes = FILE,
    node: str = "node",
    *,
    contract: str = "",
) -> Receipt:
    """Register a node, with the digest of its execution contract, claim a task and submit a file."""
    await client.register(contract)
    task = await harness.claim(client)
    receipt = build_receipt(harness, task, file, node=node)
    await client.submit(receipt, sign(harness, receipt, node), file)
    return receipt


async def upload(client: CoordinatorClient, task: TaskOrder, file: bytes, **changes: Any) -> UploadGrant:
    values = {"task": task.task, "lease": task.lease, "work_key": canonical.sha256(file), "size": len(file)}
    body = UploadRequest(**(values | changes)).model_dump_json().encode()
    return UploadGrant.model_validate_json(await client._post("/v1/uploads", body))


async def submit_uploaded(
    harness: CoordinatorHarness, client: CoordinatorClient, receipt: Receipt, file: bytes | None = None
) -> SubmissionResponse:
    """Submit a receipt whose file was uploaded, or with any file."""
    request = SubmissionRequest(receipt=ReceiptBody.of(receipt), signature=sign(harness, receipt), file=file)
    answer = await client._post("/v1/submissions", request.model_dump_json().encode())
    return SubmissionResponse.model_validate_json(answer)


async def claim_order(
    client: CoordinatorClient, *, wait_seconds: float, free_turns: int = 1, **arguments: Any
) -> JudgeOrder | RevealOrder | None:
    """Return one order for a validator. It takes a turn only if there is nothing else to do."""
    known = await client.claim_validations(wait_seconds=0, free_turns=0, **arguments)
    orders = known or await client.claim_validations(wait_seconds=wait_seconds, free_turns=free_turns, **arguments)
    return orders[0] if orders else None


def build_bundle(harness: CoordinatorHarness, validator: int, order: JudgeOrder, **details: Any) -> Bundle:
    """Build a validator's evidence bundle. Each validator's content differs, and `details` are added to it."""
    return Bundle(
        chain_id=harness.ctx.receipt_domain.chain_id,
        court=harness.ctx.receipt_domain.contract,
        pool=harness.ctx.ledger.pool,
        params_hash=harness.ctx.terms.params_hash,
        receipt=order.receipt,
        signature=order.signature,
        record_hash=order.record_hash,
        contract=order.contract,
        draw=order.draw,
        rows=harness.ctx.params.draw_rows(eip712.compute_struct_hash(order.receipt.to_message()), order.draw),
        full=order.full,
        decision=Decision.ACCEPT,
        reason=Reason.NONE,
        units=20,
        details={"margin": 0.5, "rows": 4} | details,
        sums=SUMS,
        engine=EngineFacts(
            name="hf", dtype="float32", batch=8 + validator, hardware="cpu", versions={"covey": "0"}, contract=""
        ),
        isolation="bwrap",
    )


def build_verdict(harness: CoordinatorHarness, validator: int, order: JudgeOrder, **changes: Any) -> Verdict:
    receipt = order.receipt.to_message()
    values: dict[str, Any] = {
        "pool": receipt.pool,
        "receipt_hash": eip712.compute_struct_hash(receipt),
        "work_key": receipt.work_key,
        "validator": harness.chain.address(f"validator-{validator}"),
        "outcome": int(Decision.ACCEPT),
        "reason": 0,
        "severity": int(Severity.HARD if order.full else Severity.NONE),
        "units": 20,
        "evidence_hash": build_bundle(harness, validator, order).compute_hash(),
        "deadline": int(harness.clock()) + 86_400,
    }
    return Verdict(**(values | changes))


def build_reveal(harness: CoordinatorHarness, validator: int, order: JudgeOrder, **changes: Any) -> RevealRequest:
    verdict = build_verdict(harness, validator, order, **changes)
    return RevealRequest(
        judgement=order.judgement,
        verdict=VerdictBody.of(verdict),
        signature=eip712.sign(verdict, harness.ctx.receipt_domain, harness.wallet(f"validator-{validator}")),
        salt=make_hash(f"salt {validator}"),
        evidence=build_bundle(harness, validator, order).to_bytes().decode(),
    )


async def commit(harness: CoordinatorHarness, client: CoordinatorClient, request: RevealRequest) -> None:
    digest = eip712.compute_digest(request.verdict.to_message(), harness.ctx.receipt_domain)
    await client.commit_verdict(request.judgement, messages.compute_commitment(digest, request.salt))


async def decide(harness: CoordinatorHarness, **changes: Any) -> None:
    """Have validators 0 and 1 reveal the same verdict on one submission."""
    harness.run_job("dispatch_validation")
    requests = []
    for i in (0, 1):
        async with harness.client(f"validator-{i}") as client:
            order = await claim_order(client, wait_seconds=0)
            assert isinstance(order, JudgeOrder)
            request = build_reveal(harness, i, order, **changes)
            await commit(harness, client, request)
            requests.append(request)
    for i, request in enumerate(requests):
        async with harness.client(f"validator-{i}") as client:
            assert await claim_order(client, wait_seconds=0) == RevealOrder(judgement=request.judgement)
            await client.reveal_verdict(request)
    harness.run_job("dispatch_validation")


async def settle(harness: CoordinatorHarness) -> None:
    """Post an epoch with two accepted submissions of 20 units."""
    for i in range(2):
        async with harness.client("node") as node:
            await hand_in(harness, node, FILE + bytes([i]))
        await decide(harness)
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
