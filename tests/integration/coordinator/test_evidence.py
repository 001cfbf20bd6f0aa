"""Evidence is stored as it was signed, and anyone can read it. Files are private until their epoch closes."""

import json
from typing import Any

import httpx
import pytest

from covey.errors import OperatorError
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol import canonical
from covey.protocol.api.validator import JudgeOrder, RevealRequest
from covey.protocol.evidence import Bundle
from covey.protocol.messages import Receipt
from covey.protocol.object_keys import build_evidence_key
from covey.protocol.verdict import Decision
from tests.fakes.network import CoordinatorHarness
from tests.fakes.pool import make_hash
from tests.integration.coordinator.handing import (
    FILE,
    REJECT,
    build_bundle,
    build_reveal,
    claim_order,
    commit,
    decide,
    hand_in,
    refuse,
)

pytestmark = pytest.mark.integration


def get_file_key(receipt: Receipt) -> str:
    return f"submissions/{receipt.pool}/{receipt.task}-{receipt.lease}/{receipt.work_key}.parquet"


def list_evidence(harness: CoordinatorHarness, receipt: Receipt) -> list[str]:
    """Return the keys of all revealed bundles about a receipt."""
    with harness.ctx.database.read() as rows:
        row = rows.find_submission(task=receipt.task, lease=receipt.lease)
        return [build_evidence_key(receipt.pool, j.verdict.evidence_hash) for j in row.turns if j.verdict is not None]


async def get(harness: CoordinatorHarness, path: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(f"{harness.url}/v1/public/{path}")


def open_public(harness: CoordinatorHarness) -> CoordinatorClient:
    """Open a client without a key."""
    return CoordinatorClient(harness.url, None, chain_id=0)


async def commit_all(harness: CoordinatorHarness, count: int = 2, **changes: Any) -> list[RevealRequest]:
    harness.run_job("dispatch_validation")
    requests = []
    for i in range(count):
        async with harness.client(f"validator-{i}") as client:
            order = await claim_order(client, wait_seconds=0)
            requests.append(build_reveal(harness, i, order, **changes))
            await commit(harness, client, requests[-1])
    return requests


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad_evidence"),
        ("[]", "bad_evidence"),
        ("{", "bad_evidence"),
        ('{"a":NaN}', "bad_evidence"),
        ("[" * 60_000, "bad_evidence"),
        ("é" * 40_000, "bad_verdict"),
        ("\udc80", "bad_body"),
        ("x" * 65_537, "bad_body"),
    ],
    ids=range(8),
)
async def test_reveal__evidence_that_nobody_can_read__counts_for_nothing(
    harness: CoordinatorHarness, text: str, code: str
):
    """The evidence has the right hash."""
    async with harness.client("node") as node:
        await hand_in(harness, node)
    digest = canonical.sha256(text.encode("utf-8", "surrogatepass"))
    *_, request = await commit_all(harness, evidence_hash=digest)
    body = json.dumps(request.model_dump(mode="json") | {"evidence": text}).encode()
    path = "/v1/validations/reveal"
    answer = await harness.post(path, body, harness.sign("validator-1", body, path=path))
    assert answer.json()["code"] == code
    assert answer.status_code in (400, 422)
    with harness.ctx.database.read() as rows:
        due = rows.list_undecided(rows.list_due(harness.clock() + 3600, limit=9))
        turns = [turn for row in due for turn in row.turns]
        assert [turn.verdict for turn in turns] == [None, None]


async def test_public__evidence__is_read_once_the_submission_is_decided(harness: CoordinatorHarness):
    async with harness.client("node") as node:
        receipt = await hand_in(harness, node)
    first, second = await commit_all(harness)
    keys = [build_evidence_key(receipt.pool, request.verdict.evidence_hash) for request in (first, second)]
    assert keys[0] != keys[1], "every validator has its own"
    async with harness.client("validator-0") as client:
        await claim_order(client, wait_seconds=0)
        await client.reveal_verdict(first)
    async with open_public(harness) as anybody:
        for key in keys:
            assert await refuse(anybody.get_public(key, max_bytes=1 << 16)) == ("not_public", 404)
        async with harness.client("validator-1") as client:
            await client.reveal_verdict(second)
        harness.run_job("dispatch_validation")
        for key, request in zip(keys, (first, second), strict=True):
            data = await anybody.get_public(key, max_bytes=1 << 16)
            assert data == request.evidence.encode()
            assert Bundle.from_bytes(data).decision is Decision.ACCEPT
        assert await refuse(anybody.get_public(keys[0], max_bytes=100)) == ("oversized", 400)
    answer = await get(harness, keys[0])
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_public__file_and_leaves__are_private_until_the_epoch_closes(harness: CoordinatorHarness):
    receipts = []
    for i in range(2):
        async with harness.client("node") as node:
            receipts.append(await hand_in(harness, node, FILE + bytes([i])))
        await decide(harness)
    async with open_public(harness) as anybody:
        for receipt in receipts:
            assert await refuse(anybody.get_public(get_file_key(receipt), max_bytes=4096)) == ("not_public", 404)
            assert len(list_evidence(harness, receipt)) == 2
        harness.run_job("settle")
        for i, receipt in enumerate(receipts):
            assert await anybody.get_public(get_file_key(receipt), max_bytes=4096) == FILE + bytes([i])
        with harness.ctx.database.read() as rows:
            digest = rows.get_epoch(0).data_hash
        leaves = await anybody.get_public(f"epochs/{receipts[0].pool}/{digest}.json", max_bytes=1 << 20)
    assert canonical.sha256(leaves) == digest
    assert {leaf["work_key"] for leaf in json.loads(leaves)["leaves"]} == {r.work_key for r in receipts}


async def test_public__all_else__is_not_found(harness: CoordinatorHarness):
    """Nothing is listed, no name leads out of the store, and a file without a row is not served."""
    async with harness.client("node") as node:
        receipt = await hand_in(harness, node)
    await decide(harness)
    pool, (known, _) = receipt.pool, list_evidence(harness, receipt)
    stray = make_hash("stray")
    bundle = Bundle.from_bytes(harness.ctx.store.get(known, max_bytes=1 << 16))
    unsigned = bundle.model_copy(update={"units": 21})  # about a decided submission, but in no verdict
    harness.ctx.store.put_named_by_content(build_evidence_key(pool, unsigned.compute_hash()), unsigned.to_bytes())
    harness.ctx.store.put_named_by_content(f"epochs/{pool}/{stray}.json", b"{}")
    harness.ctx.store.put_named_by_content(build_evidence_key(pool, stray), b"{}")
    harness.ctx.store.put_named_by_content("secret.json", b"{}")
    for key in (
        build_evidence_key(pool, unsigned.compute_hash()),
        build_evidence_key(pool, stray),
        build_evidence_key(pool + 1, known.rpartition("/")[2][:66]),
        f"epochs/{pool}/{stray}.json",
        f"submissions/{pool}/{receipt.task}-{receipt.lease}/{stray}.parquet",
        f"submissions/{pool}/{9 * 10**17}-1/{receipt.work_key}.parquet",
        "secret.json",
        "evidence",
        f"evidence/{pool}",
        "../coordinator.sqlite3",
        "%2e%2e/coordinator.sqlite3",
        f"evidence/{pool}/..%2f..%2fsecret.json",
        "x" * 5000,
    ):
        answer = await get(harness, key)
        assert (answer.status_code, answer.json()["code"]) in {(404, "not_public"), (404, "not_found")}, key
    assert (await get(harness, known)).status_code == 200


async def test_client__without_a_key__signs_nothing(harness: CoordinatorHarness):
    async with open_public(harness) as anybody:
        assert (await anybody.get_status()).pool == harness.ctx.config.pool
        with pytest.raises(OperatorError, match="no_key"):
            await anybody.list_hard_cases()


async def test_reveal__evidence_says_whether_a_drawn_row_is_false__is_kept_with_the_verdict(
    harness: CoordinatorHarness,
):
    async with harness.client("node") as node:
        receipt = await hand_in(harness, node)
    harness.run_job("dispatch_validation")
    requests = []
    for i, details in enumerate(({"drawn": 1}, {})):
        async with harness.client(f"validator-{i}") as client:
            order = await claim_order(client, wait_seconds=0)
            assert isinstance(order, JudgeOrder)
            evidence = build_bundle(harness, i, order, **details)
            request = build_reveal(harness, i, order, **(REJECT | {"evidence_hash": evidence.compute_hash()}))
            requests.append(request.model_copy(update={"evidence": evidence.to_bytes().decode()}))
            await commit(harness, client, requests[-1])
    for i, request in enumerate(requests):
        async with harness.client(f"validator-{i}") as client:
            await claim_order(client, wait_seconds=0)
            await client.reveal_verdict(request)
    with harness.ctx.database.read() as rows:
        row = rows.find_submission(task=receipt.task, lease=receipt.lease)
        assert [turn.drawn_rows_false for turn in row.turns] == [True, False]
