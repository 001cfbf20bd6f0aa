"""The walk through the API on a real chain: lease, upload, receipt, verdicts, batch, epoch and claim, with its
refusals.
"""

import asyncio
import dataclasses
import functools
from typing import Any

import pytest

from covey.chain.json_rpc import ChainClient
from covey.errors import TransientError
from covey.protocol import canonical, eip712, messages
from covey.protocol.api.common import MAX_WAIT_SECONDS, ReceiptBody
from covey.protocol.api.worker import SubmissionRequest
from covey.protocol.ids import PoolId
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Reason
from tests.fakes.network import CoordinatorHarness
from tests.fakes.pool import INSTANCE, make_address, make_hash
from tests.integration.coordinator.handing import (
    FILE,
    build_receipt,
    build_reveal,
    claim_order,
    commit,
    decide,
    hand_in,
    refuse,
    sign,
    upload,
)

pytestmark = pytest.mark.integration


async def test_api__chain_away__says_so_without_the_nodes_address(
    harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(harness.ctx.contracts.nodes._client, "_pool", ChainClient("http://127.0.0.1:9/k")._pool)
    async with harness.client("node") as client:
        with pytest.raises(TransientError, match="chain_unreachable: something that the coordinator needs") as caught:
            await client.register()
    assert "127.0.0.1" not in caught.value.message


# -- workers


async def test_submit__lease_of_the_node__is_countersigned_by_the_operator(harness: CoordinatorHarness):
    async with harness.client("node") as client:
        await client.register()
        task = await harness.claim(client)
        assert (task.policy_version, task.record_hash, task.groups) == (0, make_hash("policy 0"), 2)
        receipt = build_receipt(harness, task, FILE)
        before = int(harness.clock())
        answer = await client.submit(receipt, sign(harness, receipt), FILE)
        again = await client.submit(receipt, sign(harness, receipt), FILE)
    promise = messages.Countersignature(
        receipt_hash=answer.receipt_hash, signed_at=answer.signed_at, due_by=answer.due_by
    )
    assert answer.receipt_hash == eip712.compute_struct_hash(receipt)
    signer = eip712.recover_signer(promise, harness.ctx.ledger_domain, answer.signature)
    assert signer == harness.chain.address("operator")
    assert before <= answer.signed_at <= before + 60
    assert answer.due_by == answer.signed_at + 64 * harness.ctx.ledger.epoch_length
    assert again == answer, "sent again, answered alike"


async def test_submit__second_receipt_for_the_lease__is_equivocation_or_duplicate(harness: CoordinatorHarness):
    async with harness.client("node") as client:
        receipt = await hand_in(harness, client)
        later = dataclasses.replace(receipt, deadline=receipt.deadline + 1)
        assert await refuse(client.submit(later, sign(harness, later), FILE)) == ("duplicate_submission", 409)
        other = dataclasses.replace(receipt, work_key=canonical.sha256(b"other"))
        assert await refuse(client.submit(other, sign(harness, other), b"other")) == ("equivocation", 409)


async def test_submit__expired_lease__is_refused_at_the_upload(harness: CoordinatorHarness):
    async with harness.client("node") as client:
        await client.register()
        task = await harness.claim(client)
        harness.clock.offset += 31
        receipt = build_receipt(harness, task, FILE)
        assert await refuse(client.submit(receipt, sign(harness, receipt), FILE)) == ("lease_expired", 409)


async def test_submit__task_of_another__is_refused(harness: CoordinatorHarness):
    async with harness.client("node") as client, harness.client("node-2") as other:
        await client.register()
        await other.register()
        task = await harness.claim(client)
        receipt = build_receipt(harness, task, FILE, node="node-2")
        assert await refuse(other.submit(receipt, sign(harness, receipt, "node-2"), FILE)) == ("not_your_task", 403)
        theirs = build_receipt(harness, task, FILE)
        body = SubmissionRequest(receipt=ReceiptBody.of(theirs), signature=sign(harness, theirs))
        waiting = other._post("/v1/submissions", body.model_dump_json().encode())
        assert await refuse(waiting) == ("not_your_task", 403), "a receipt of another cannot be handed in"


@pytest.mark.parametrize(
    ("changes", "signer", "code"),
    [
        ({"pool": 99}, "node", "not_your_task"),
        ({}, "node-2", "bad_signature"),
        ({"work_key": make_hash("never uploaded")}, "node", "missing"),
        ({"units": 33}, "node", "bad_receipt"),
        ({"contributor": make_address("x")}, "node", "bad_receipt"),
    ],
)
async def test_submit__receipt_that_is_wrong__is_refused(
    harness: CoordinatorHarness, changes: dict[str, Any], signer: str, code: str
):
    async with harness.client("node") as client:
        await client.register()
        task = await harness.claim(client)
        good = build_receipt(harness, task, FILE)
        grant = await upload(client, task, FILE)
        await client.put_object(grant.url, FILE)
        receipt = dataclasses.replace(good, **changes)
        body = SubmissionRequest(receipt=ReceiptBody.of(receipt), signature=sign(harness, receipt, signer))
        assert (await refuse(client._post("/v1/submissions", body.model_dump_json().encode())))[0] == code


async def test_claim_task__suspended__is_told(harness: CoordinatorHarness):
    from coordinator.domain import nodes

    async with harness.client("node") as client:
        await client.register()
        with harness.ctx.database.write() as rows:
            nodes.suspend(rows, nodes.require_node(rows, harness.wallet("node").address), "case")
        waiting = client.claim_task(instance=INSTANCE, free_slots=1, cached_version=None, wait_seconds=1)
        assert await refuse(waiting) == ("suspended", 403)


async def test_claim_task__no_task_is_pending__waits_and_a_job_leases_the_first_one(harness: CoordinatorHarness):
    async with harness.client("node") as client:
        await client.register()
        set_tasks(harness, TaskState.PENDING, TaskState.EXPIRED)
        claim = functools.partial(client.claim_task, instance=INSTANCE, free_slots=1, cached_version=None)
        assert await claim(wait_seconds=0.1) is None
        set_tasks(harness, TaskState.EXPIRED, TaskState.PENDING)
        harness.run_job("assign_tasks")  # The poll has ended, so it leases nothing.
        set_tasks(harness, TaskState.PENDING, TaskState.EXPIRED)
        waiting = asyncio.create_task(claim(wait_seconds=MAX_WAIT_SECONDS))
        await await_poll(harness)
        set_tasks(harness, TaskState.EXPIRED, TaskState.PENDING)
        harness.run_job("assign_tasks")
        order = await waiting
        assert order is not None
        assert order.lease == 1


async def test_claim_task__client_leaves_while_it_waits__gets_no_lease(harness: CoordinatorHarness):
    async with harness.client("node") as client:
        await client.register()
        set_tasks(harness, TaskState.PENDING, TaskState.EXPIRED)
        claim = functools.partial(client.claim_task, instance=INSTANCE, free_slots=1, cached_version=None)
        waiting = asyncio.create_task(claim(wait_seconds=MAX_WAIT_SECONDS))
        await await_poll(harness)
        waiting.cancel()
        async with asyncio.timeout(60):
            while has_waiting(harness, since=1.0):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    set_tasks(harness, TaskState.EXPIRED, TaskState.PENDING)
    harness.run_job("assign_tasks")
    with harness.ctx.database.read() as rows:
        assert rows.list_tasks(TaskState.ASSIGNED) == []


async def test_claim_task__task_is_pending__is_leased_without_any_job(harness: CoordinatorHarness):
    async with harness.client("node") as client:
        await client.register()
        order = await client.claim_task(instance=INSTANCE, free_slots=1, cached_version=None, wait_seconds=1)
    assert order is not None
    assert (order.policy_version, order.groups) == (0, 2)


def set_tasks(harness: CoordinatorHarness, before: TaskState, after: TaskState) -> None:
    with harness.ctx.database.write() as rows:
        for task in rows.list_tasks(before):
            task.state = after


async def await_poll(harness: CoordinatorHarness) -> None:
    """Wait until the long poll of a node is noted in its row."""
    async with asyncio.timeout(60):
        while not has_waiting(harness, since=harness.clock()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def has_waiting(harness: CoordinatorHarness, *, since: float) -> bool:
    """Return whether a row says that a node waits until a time since `since`. 0 says that it does not wait."""
    with harness.ctx.database.read() as rows:
        return rows.has_waiting(since)


async def test_jobs__doubled_triggers__change_nothing(harness: CoordinatorHarness):
    async with harness.client("node") as client:
        await hand_in(harness, client)
    for job in ("assign_tasks", "expire_leases", "dispatch_validation", "settle"):
        harness.run_job(job)
    before = await snapshot(harness)
    for job in ("dispatch_validation", "settle", "expire_leases", "assign_tasks") * 2:
        harness.run_job(job)
    assert await snapshot(harness) == before


async def snapshot(harness: CoordinatorHarness) -> dict[str, Any]:
    async with harness.client("node") as client:
        view = (await client.get_status()).model_dump(exclude={"time"})
    with harness.ctx.database.read() as rows:
        undecided = rows.list_submissions(SubmissionState.SUBMITTED)
        view["open"] = [(turn.id, turn.validator) for row in undecided for turn in row.turns]
    return view


# -- objects


async def test_validation__order__names_everything_and_its_link_serves_the_file(harness: CoordinatorHarness):
    async with harness.client("node") as node:
        receipt = await hand_in(harness, node)
    harness.run_job("dispatch_validation")
    async with harness.client("validator-0") as client:
        order = await claim_order(client, wait_seconds=0)
        assert order.receipt.to_message() == receipt
        assert (order.full, order.record_hash) == (True, make_hash("policy 0"))
        eip712.require_signer(receipt, harness.ctx.receipt_domain, order.signature, harness.wallet("node").address)
        assert await client.get_object(order.url, max_bytes=4096) == FILE
        assert await refuse(client.get_object(order.url, max_bytes=10)) == ("oversized", 400)
        harness.clock.offset += 302
        assert await refuse(client.get_object(order.url, max_bytes=4096)) == ("bad_link", 403)


async def test_claim_validation__second_poll_of_one_validator__ends_the_first(harness: CoordinatorHarness):
    """The deadline is shorter than the first poll, which would otherwise end by itself."""
    async with harness.client("validator-0") as client, asyncio.timeout(MAX_WAIT_SECONDS - 1):
        first = asyncio.create_task(claim_order(client, wait_seconds=MAX_WAIT_SECONDS))
        while not first.done():
            assert await claim_order(client, wait_seconds=0.1) is None
        assert await first is None


async def test_reveal__evidence__is_kept_under_its_hash_and_must_have_it(harness: CoordinatorHarness):
    async with harness.client("node") as node:
        await hand_in(harness, node)
    harness.run_job("dispatch_validation")
    async with harness.client("validator-0") as first, harness.client("validator-1") as second:
        for i, client in enumerate((first, second)):
            order = await claim_order(client, wait_seconds=0)
            request = build_reveal(harness, i, order)
            await commit(harness, client, request)
        other = request.model_copy(update={"evidence": request.evidence.replace("0.5", "0.25")})
        assert (await refuse(second.reveal_verdict(other)))[0] == "bad_verdict"
        assert (await refuse(first.reveal_verdict(request)))[0] == "bad_verdict", "somebody else's verdict"
        forged = request.model_copy(update={"signature": "0x" + "1b" * 65})
        assert (await refuse(second.reveal_verdict(forged)))[0] == "bad_signature"
        await second.reveal_verdict(request)
    key = f"evidence/{harness.ctx.config.pool}/{request.verdict.evidence_hash}.json"
    assert harness.ctx.store.get(key, max_bytes=1 << 16) == request.evidence.encode()


async def test_hard_rejection__case__holds_all_that_the_court_needs(harness: CoordinatorHarness):
    async with harness.client("node") as node:
        receipt = await hand_in(harness, node)
    await decide(harness, outcome=2, reason=int(Reason.PROOF), severity=2, units=0)
    async with harness.client("validator-2") as client:
        (case,) = await client.list_hard_cases()
    verdicts = [body.to_message() for body in case.verdicts]
    call = harness.chain.contracts.court.propose(case.receipt.to_message(), case.signature, verdicts, case.signatures)
    harness.chain.send("validator-2", call)
    await harness.follow()
    assert case.receipt.to_message() == receipt
    with harness.ctx.database.read() as rows:
        (row,) = rows.list_cases()
        assert (row.receipt_hash, row.node) == (eip712.compute_struct_hash(receipt), harness.wallet("node").address)
        assert rows.get_node(row.node).suspended == "case"


async def test_public_views__anybody__sees_hashes_and_states_only(harness: CoordinatorHarness):
    async with harness.client("node") as node:
        receipt = await hand_in(harness, node)
    async with harness.client("stranger") as client:
        pool, status = await client.get_pool(), await client.get_status()
        (row,) = await client.list_submissions(limit=10)
    assert pool.params == harness.ctx.params.to_text()
    assert pool.operator == harness.chain.address("operator")
    assert (status.step, status.steps[0].state, status.ended, status.settled) == (0, "OPEN", False, False)
    assert status.tasks == {"PENDING": 3, "SUBMITTED": 1}
    assert status.submissions == {"SUBMITTED": 1}
    assert (row.receipt_hash, row.state, row.reason) == (eip712.compute_struct_hash(receipt), "SUBMITTED", "none")
    assert not {"url", "tokens", "prompt", "signature"} & set(row.model_dump())


# -- the chain


async def test_follow__pool_ended__plans_no_more_and_settles_what_is_left(harness: CoordinatorHarness):
    async with harness.client("node") as node:
        await hand_in(harness, node)
    await decide(harness)
    harness.chain.send("operator", harness.chain.contracts.pools.end_pool(PoolId(harness.ctx.config.pool)))
    await harness.follow()
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
    async with harness.client("node") as client:
        status = await client.get_status()
    assert (status.ended, status.settled, status.tasks.get("PENDING", 0)) == (True, True, 0)


async def test_follow__reorganisation__forgets_the_end_that_was_undone(harness: CoordinatorHarness):
    depth = harness.chain.client.request("evm_snapshot")
    harness.chain.send("operator", harness.chain.contracts.pools.end_pool(PoolId(harness.ctx.config.pool)))
    await harness.follow()
    with harness.ctx.database.read() as rows:
        assert rows.get_fact("ended") > 0
    harness.chain.client.request("evm_revert", depth)
    for _ in range(3):
        harness.chain.client.request("evm_increaseTime", hex(1))
        harness.chain.client.request("evm_mine")
    await harness.follow()
    await harness.follow()
    with harness.ctx.database.read() as rows:
        assert rows.get_fact("ended") == 0
    harness.run_job("expire_leases")
    async with harness.client("node") as client:
        assert (await client.get_status()).tasks["PENDING"] == 4


async def test_follow__node_removed__gets_no_more_tasks(harness: CoordinatorHarness):
    async with harness.client("node") as client:
        await client.register()
        await harness.claim(client)
        call = harness.chain.contracts.nodes.remove_node(harness.ctx.ledger.pool, harness.wallet("node").address)
        harness.chain.send("contributor", call)
        await harness.follow()
        waiting = client.claim_task(instance=INSTANCE, free_slots=1, cached_version=None, wait_seconds=0.1)
        assert await refuse(waiting) == ("suspended", 403)
        assert (await client.get_status()).tasks["EXPIRED"] == 1
