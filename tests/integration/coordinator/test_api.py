"""The walk behind the door, on a real chain: lease, upload, receipt, verdicts, batch, epoch, claim; and who strays."""

import asyncio
import dataclasses
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from covey.client import CoordinatorClient
from covey.errors import ProtocolError
from covey.protocol import canonical, messages, wire
from covey.protocol.ids import PoolId
from covey.protocol.messages import Receipt, Verdict
from covey.protocol.verdict import Decision, Reason
from tests.fakes.network import Office
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.integration
FILE = b"rows " * 100


def build_receipt(office: Office, task: wire.TaskOrder, file: bytes, *, node: str = "node", **changes: Any) -> Receipt:
    values: dict[str, Any] = {
        "pool": office.ctx.ledger.pool,
        "task": task.task,
        "lease": task.lease,
        "node": office.wallet(node).address,
        "contributor": office.chain.address("contributor"),
        "policy_version": task.policy_version,
        "work_key": canonical.sha256(file),
        "groups": task.groups,
        "units": 20,
        "deadline": int(office.clock()) + 86_400,
    }
    return Receipt(**(values | changes))


def sign(office: Office, receipt: Receipt, node: str = "node") -> str:
    return messages.sign(receipt, office.ctx.receipt_domain, office.wallet(node))


async def refuse(waiting: Any) -> tuple[str, int]:
    with pytest.raises(ProtocolError) as caught:
        await waiting
    return caught.value.code, caught.value.status


async def hand_in(office: Office, client: CoordinatorClient, file: bytes = FILE, node: str = "node") -> Receipt:
    """Register, lease, submit."""
    await client.register()
    task = await office.claim(client)
    receipt = build_receipt(office, task, file, node=node)
    await client.submit(receipt, sign(office, receipt, node), file)
    return receipt


# -- workers


async def test_submit__lease_of_the_node__is_countersigned_by_the_operator(office: Office):
    async with office.client("node") as client:
        await client.register()
        task = await office.claim(client)
        assert (task.policy_version, task.manifest_hash, task.groups) == (0, make_hash("policy 0"), 2)
        receipt = build_receipt(office, task, FILE)
        before = office.chain.client.block_number()
        answer = await client.submit(receipt, sign(office, receipt), FILE)
        again = await client.submit(receipt, sign(office, receipt), FILE)
    promise = messages.Countersignature(
        receipt_hash=answer.receipt_hash, block_number=answer.block_number, latest_epoch=answer.latest_epoch
    )
    assert answer.receipt_hash == messages.compute_struct_hash(receipt)
    signer = messages.recover_signer(promise, office.ctx.ledger_domain, answer.signature)
    assert signer == office.chain.address("operator")
    assert answer.block_number >= before
    assert answer.latest_epoch == 64
    assert again == answer, "sent again, answered alike"


async def test_submit__second_receipt_for_the_lease__is_equivocation_or_duplicate(office: Office):
    async with office.client("node") as client:
        receipt = await hand_in(office, client)
        later = dataclasses.replace(receipt, deadline=receipt.deadline + 1)
        assert await refuse(client.submit(later, sign(office, later), FILE)) == ("duplicate_submission", 409)
        other = dataclasses.replace(receipt, work_key=canonical.sha256(b"other"))
        assert await refuse(client.submit(other, sign(office, other), b"other")) == ("equivocation", 409)


async def test_submit__expired_lease__is_refused_at_the_upload(office: Office):
    async with office.client("node") as client:
        await client.register()
        task = await office.claim(client)
        office.clock.offset += 31
        receipt = build_receipt(office, task, FILE)
        assert await refuse(client.submit(receipt, sign(office, receipt), FILE)) == ("lease_expired", 409)


async def test_submit__task_of_another__is_refused(office: Office):
    async with office.client("node") as client, office.client("node-2") as other:
        await client.register()
        await other.register()
        task = await office.claim(client)
        receipt = build_receipt(office, task, FILE, node="node-2")
        assert await refuse(other.submit(receipt, sign(office, receipt, "node-2"), FILE)) == ("not_your_task", 403)
        theirs = build_receipt(office, task, FILE)
        body = wire.SubmissionRequest(receipt=wire.ReceiptBody.of(theirs), signature=sign(office, theirs))
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
    office: Office, changes: dict[str, Any], signer: str, code: str
):
    async with office.client("node") as client:
        await client.register()
        task = await office.claim(client)
        good = build_receipt(office, task, FILE)
        grant = await upload(client, task, FILE)
        await client.put_object(grant.url, FILE)
        receipt = dataclasses.replace(good, **changes)
        body = wire.SubmissionRequest(receipt=wire.ReceiptBody.of(receipt), signature=sign(office, receipt, signer))
        assert (await refuse(client._post("/v1/submissions", body.model_dump_json().encode())))[0] == code


async def test_claim_task__suspended__is_told(office: Office):
    from coordinator import service

    async with office.client("node") as client:
        await client.register()
        with office.ctx.database.write() as rows:
            service.suspend(rows, service.require_node(rows, office.wallet("node").address), "case")
        waiting = client.claim_task(free_slots=1, cached_version=None, wait_seconds=1)
        assert await refuse(waiting) == ("suspended", 403)


async def test_claim_task__kick_lost__is_found_by_the_next_one(office: Office):
    async with office.client("node") as client:
        await client.register()
        assert await client.claim_task(free_slots=1, cached_version=None, wait_seconds=0.1) is None, (
            "nobody ran the job"
        )
        office.run_job("assign_tasks")  # and now it runs late: the poll is over, nothing is leased to nobody
        assert (await office.claim(client)).lease == 1


async def test_jobs__doubled_kicks__change_nothing(office: Office):
    async with office.client("node") as client:
        await hand_in(office, client)
    for job in ("assign_tasks", "expire_leases", "dispatch_validation", "tally", "settle_epoch"):
        office.run_job(job)
    before = await snapshot(office)
    for job in ("tally", "dispatch_validation", "settle_epoch", "expire_leases", "assign_tasks") * 2:
        office.run_job(job)
    assert await snapshot(office) == before


async def snapshot(office: Office) -> dict[str, Any]:
    async with office.client("node") as client:
        view = (await client.get_status()).model_dump()
    with office.ctx.database.read() as rows:
        view["open"] = [(j.id, j.validator) for j in rows.list_open_judgements()]
    return view


# -- objects


async def upload(client: CoordinatorClient, task: wire.TaskOrder, file: bytes, **changes: Any) -> wire.UploadGrant:
    values = {"task": task.task, "lease": task.lease, "work_key": canonical.sha256(file), "size": len(file)}
    body = wire.UploadRequest(**(values | changes)).model_dump_json().encode()
    return wire.UploadGrant.model_validate_json(await client._post("/v1/uploads", body))


@pytest.fixture
async def granted(office: Office):
    """(client, task, link for FILE)."""
    async with office.client("node") as client:
        await client.register()
        task = await office.claim(client)
        yield client, task, (await upload(client, task, FILE)).url


async def put(url: str, data: bytes, method: str = "PUT") -> tuple[int, str]:
    async with httpx.AsyncClient(trust_env=False) as http:
        response = await http.request(method, url, content=data)
    return response.status_code, response.json().get("code", "") if response.status_code >= 400 else ""


def change_link(url: str, **query: str) -> str:
    parts = urlsplit(url)
    values = {name: found[0] for name, found in parse_qs(parts.query).items()}
    return parts._replace(query=urlencode(values | query)).geturl()


async def test_open_upload__larger_than_the_pool_allows__is_refused(granted: Any):
    client, task, _ = granted
    assert await refuse(upload(client, task, FILE, size=24_577)) == ("oversized", 413)
    assert await refuse(upload(client, task, FILE, size=1 << 70)) == ("oversized", 413)


async def test_put_object__file_with_another_size_or_hash__is_refused(granted: Any):
    *_, link = granted
    assert await put(link, FILE + b"x") == (400, "wrong_size")
    assert await put(link, b"x" * len(FILE)) == (400, "digest_mismatch")
    assert await put(link, b"x" * 30_000) == (413, "oversized")


async def test_put_object__twice__is_immutable(office: Office, granted: Any):
    *_, link = granted
    assert await put(link, FILE) == (201, "")
    assert await put(link, FILE) == (201, "")
    assert await put(link, b"y" * len(FILE)) == (400, "digest_mismatch")
    key = urlsplit(link).path.removeprefix("/v1/objects/")
    assert office.ctx.store.get(key, max_bytes=4096) == FILE


@pytest.mark.parametrize(
    "query",
    [
        {"signature": "0" * 64},
        {"signature": ""},
        {"signature": "é" * 64},
        {"size": "501"},
        {"size": "-1"},
        {"expires": "99999999999"},
        {"expires": "x"},
        {"expires": "9" * 5000},
    ],
)
async def test_put_object__forged_link__is_refused(granted: Any, query: dict[str, str]):
    *_, link = granted
    status, code = await put(change_link(link, **query), FILE)
    assert (status, code) == (403, "bad_link") or (query["expires"][:1] == "9" and status == 400)


async def test_put_object__expired_link__is_refused(office: Office, granted: Any):
    *_, link = granted
    office.clock.offset += 302
    assert await put(link, FILE) == (403, "bad_link")


async def test_put_object__link_for_another_verb__is_refused(granted: Any):
    *_, link = granted
    await put(link, FILE)
    assert await put(link, b"", "GET") == (403, "bad_link")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/objects/../../deployment.json",
        "/v1/objects/%2e%2e/%2e%2e/coordinator.sqlite3",
        "/v1/objects/..%2f..%2fcoordinator.sqlite3",
        "/v1/objects//etc/passwd",
        "/v1/objects/submissions/1/%c0%ae%c0%ae/x",
        "/v1/objects/submissions/1/\u2025/x",
        "/v1/objects/submissions%00",
        "/v1/objects/",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_objects__path_of_the_strangers_choice__is_never_served(granted: Any, path: str, method: str):
    """Sent raw: an HTTP client would tidy the path up."""
    *_, link = granted
    parts = urlsplit(link)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"{method} {path}?{parts.query} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-length: 1\r\n\r\nx"
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.read(4096), 5)
    writer.close()
    await writer.wait_closed()
    assert answer.split()[1] in (b"403", b"404", b"400"), answer


# -- validators and the trainer


def build_verdict(office: Office, validator: int, order: wire.JudgeOrder, **changes: Any) -> Verdict:
    receipt = order.receipt.to_message()
    values: dict[str, Any] = {
        "pool": receipt.pool,
        "receipt_hash": messages.compute_struct_hash(receipt),
        "work_key": receipt.work_key,
        "validator": office.chain.address(f"validator-{validator}"),
        "outcome": int(Decision.ACCEPT),
        "reason": 0,
        "severity": 0,
        "units": 20,
        "evidence_hash": canonical.sha256(canonical.to_bytes({"margin": 0.5, "rows": 4})),
        "deadline": int(office.clock()) + 86_400,
    }
    return Verdict(**(values | changes))


def build_reveal(office: Office, validator: int, order: wire.JudgeOrder, **changes: Any) -> wire.RevealRequest:
    verdict = build_verdict(office, validator, order, **changes)
    return wire.RevealRequest(
        judgement=order.judgement,
        verdict=wire.VerdictBody.of(verdict),
        signature=messages.sign(verdict, office.ctx.receipt_domain, office.wallet(f"validator-{validator}")),
        salt=make_hash(f"salt {validator}"),
        evidence={"margin": 0.5, "rows": 4},
    )


async def commit(office: Office, client: CoordinatorClient, request: wire.RevealRequest) -> None:
    digest = messages.compute_digest(request.verdict.to_message(), office.ctx.receipt_domain)
    await client.commit_verdict(request.judgement, messages.compute_commitment(digest, request.salt))


async def decide(office: Office, **changes: Any) -> None:
    """Validators 0 and 1 judge one submission alike."""
    office.run_job("dispatch_validation")
    requests = []
    for i in (0, 1):
        async with office.client(f"validator-{i}") as client:
            order = await client.claim_validation(wait_seconds=0)
            assert isinstance(order, wire.JudgeOrder)
            request = build_reveal(office, i, order, **changes)
            await commit(office, client, request)
            requests.append(request)
    for i, request in enumerate(requests):
        async with office.client(f"validator-{i}") as client:
            assert await client.claim_validation(wait_seconds=0) == wire.RevealOrder(judgement=request.judgement)
            await client.reveal_verdict(request)
    office.run_job("tally")


async def test_validation__order__names_everything_and_its_link_serves_the_file(office: Office):
    async with office.client("node") as node:
        receipt = await hand_in(office, node)
    office.run_job("dispatch_validation")
    async with office.client("validator-0") as client:
        order = await client.claim_validation(wait_seconds=0)
        assert order.receipt.to_message() == receipt
        assert (order.full, order.manifest_hash) == (True, make_hash("policy 0"))
        messages.require_signer(receipt, office.ctx.receipt_domain, order.signature, office.wallet("node").address)
        assert await client.get_object(order.url, max_bytes=4096) == FILE
        assert await refuse(client.get_object(order.url, max_bytes=10)) == ("oversized", 400)
        office.clock.offset += 302
        assert await refuse(client.get_object(order.url, max_bytes=4096)) == ("bad_link", 403)


async def test_reveal__evidence__is_kept_under_its_hash_and_must_have_it(office: Office):
    async with office.client("node") as node:
        await hand_in(office, node)
    office.run_job("dispatch_validation")
    async with office.client("validator-0") as first, office.client("validator-1") as second:
        for i, client in enumerate((first, second)):
            order = await client.claim_validation(wait_seconds=0)
            request = build_reveal(office, i, order)
            await commit(office, client, request)
        other = request.model_copy(update={"evidence": {"margin": 0.25}})
        assert (await refuse(second.reveal_verdict(other)))[0] == "bad_verdict"
        assert (await refuse(first.reveal_verdict(request)))[0] == "bad_verdict", "somebody else's verdict"
        forged = request.model_copy(update={"signature": "0x" + "1b" * 65})
        assert (await refuse(second.reveal_verdict(forged)))[0] == "bad_signature"
        await second.reveal_verdict(request)
    key = f"evidence/{office.ctx.config.pool}/{request.verdict.evidence_hash}.json"
    assert office.ctx.store.get(key, max_bytes=999) == b'{"margin":0.5,"rows":4}'


async def test_hard_rejection__case__holds_all_that_the_court_needs(office: Office):
    async with office.client("node") as node:
        receipt = await hand_in(office, node)
    await decide(office, outcome=2, reason=int(Reason.PROOF), severity=2, units=0)
    async with office.client("validator-2") as client:
        (case,) = await client.list_hard_cases()
    verdicts = [body.to_message() for body in case.verdicts]
    call = office.chain.contracts.court.propose(case.receipt.to_message(), case.signature, verdicts, case.signatures)
    office.chain.send("validator-2", call)
    await office.follow()
    assert case.receipt.to_message() == receipt
    with office.ctx.database.read() as rows:
        (row,) = rows.list_cases()
        assert (row.receipt_hash, row.node) == (messages.compute_struct_hash(receipt), office.wallet("node").address)
        assert rows.get_node(row.node).suspended == "case"


async def test_public_views__anybody__sees_hashes_and_states_only(office: Office):
    async with office.client("node") as node:
        receipt = await hand_in(office, node)
    async with office.client("stranger") as client:
        pool, status = await client.get_pool(), await client.get_status()
        (row,) = await client.list_submissions(limit=10)
    assert pool.params == office.ctx.params.to_text()
    assert pool.operator == office.chain.address("operator")
    assert (status.step, status.steps[0].state, status.ended, status.settled) == (0, "OPEN", False, False)
    assert status.tasks == {"PENDING": 3, "SUBMITTED": 1}
    assert status.submissions == {"SUBMITTED": 1}
    assert (row.receipt_hash, row.state, row.reason) == (messages.compute_struct_hash(receipt), "SUBMITTED", "none")
    assert not {"url", "tokens", "prompt", "signature"} & set(row.model_dump())


# -- the chain


async def test_follow__pool_ended__plans_no_more_and_settles_what_is_left(office: Office):
    async with office.client("node") as node:
        await hand_in(office, node)
    await decide(office)
    office.chain.send("operator", office.chain.contracts.pools.end_pool(PoolId(office.ctx.config.pool)))
    await office.follow()
    office.run_job("settle_epoch")
    await office.follow()
    await office.follow()
    async with office.client("node") as client:
        status = await client.get_status()
    assert (status.ended, status.settled, status.tasks.get("PENDING", 0)) == (True, True, 0)


async def test_follow__reorganisation__forgets_the_end_that_was_undone(office: Office):
    depth = office.chain.client.request("evm_snapshot")
    office.chain.send("operator", office.chain.contracts.pools.end_pool(PoolId(office.ctx.config.pool)))
    await office.follow()
    with office.ctx.database.read() as rows:
        assert rows.get_fact("ended") > 0
    office.chain.client.request("evm_revert", depth)
    for _ in range(3):
        office.chain.client.request("evm_increaseTime", hex(1))
        office.chain.client.request("evm_mine")
    await office.follow()
    await office.follow()
    with office.ctx.database.read() as rows:
        assert rows.get_fact("ended") == 0
    office.run_job("expire_leases")
    async with office.client("node") as client:
        assert (await client.get_status()).tasks["PENDING"] == 4


async def test_follow__node_removed__gets_no_more_tasks(office: Office):
    async with office.client("node") as client:
        await client.register()
        await office.claim(client)
        call = office.chain.contracts.nodes.remove_node(office.ctx.ledger.pool, office.wallet("node").address)
        office.chain.send("contributor", call)
        await office.follow()
        waiting = client.claim_task(free_slots=1, cached_version=None, wait_seconds=0.1)
        assert await refuse(waiting) == ("suspended", 403)
        assert (await client.get_status()).tasks["EXPIRED"] == 1
