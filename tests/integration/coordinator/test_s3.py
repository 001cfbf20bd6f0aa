"""An S3 store, whose links fix neither size nor content: validators get the file that was countersigned.

Every test runs on a fake in this process and on OpenStack Swift, where that is installed.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from covey.errors import ProtocolError, TransientError
from covey.network.coordinator_client import CoordinatorClient
from covey.object_store import LinkSigner, Method, ObjectStore
from covey.protocol import canonical
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.worker import SubmissionRequest, SubmissionResponse, TaskOrder
from covey.protocol.messages import Receipt
from tests.fakes.network import CoordinatorHarness, create_pool, open_harness, reset
from tests.fakes.pool import make_params
from tests.fakes.s3 import BUCKET, FakeS3, open_s3
from tests.fakes.swift import Swift, open_swift
from tests.integration.chain.conftest import Chain
from tests.integration.coordinator.conftest import MAX_FILE
from tests.integration.coordinator.handing import FILE, build_receipt, claim_order, decide, refuse, sign, upload

pytestmark = pytest.mark.integration

URL = f"s3://{BUCKET}/covey"
KEY = "submissions/1/7-9/0xab.parquet"
LARGE = 6 << 20
"""Bytes of an object that obstore uploads in parts by default."""
S3 = FakeS3 | Swift


@pytest.fixture(scope="module", params=["fake", "swift"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    opening = open_s3() if request.param == "fake" else open_swift(tmp_path_factory.mktemp("swift"))
    with opening as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def s3(server: S3) -> S3:
    """Return the server, without objects."""
    server.clear()
    return server


@pytest.fixture
def store(s3: S3) -> ObjectStore:
    return open_store()


@pytest.fixture(scope="module")
def standing(running: Chain, server: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorHarness]:
    params = make_params(max_submission_bytes=MAX_FILE, lease_seconds=30, max_staleness=1, epoch_leaves=2)
    snapshot = running.client.request("evm_snapshot")
    pool = create_pool(running, params)
    home = tmp_path_factory.mktemp("coordinator")
    with open_harness(running, pool, home, store_url=URL) as harness:
        yield harness
    running.client.request("evm_revert", snapshot)


@pytest.fixture
def harness(standing: CoordinatorHarness, s3: S3) -> Iterator[CoordinatorHarness]:
    snapshot = standing.chain.client.request("evm_snapshot")
    reset(standing)
    yield standing
    standing.chain.client.request("evm_revert", snapshot)
    standing.chain.client.request("anvil_setNextBlockBaseFeePerGas", hex(10**9))


def open_store() -> ObjectStore:
    return ObjectStore.open(URL, LinkSigner(secret=b"not used by S3", base_url="http://127.0.0.1"))


def sign_link(store: ObjectStore, method: Method, *, key: str = KEY, seconds: int = 60) -> str:
    return store.sign_link(method, key, now=time.time(), seconds=seconds)


async def call(url: str, data: bytes | None = None, method: str = "PUT") -> tuple[int, bytes]:
    async with httpx.AsyncClient(trust_env=False) as http:
        response = await http.request(method, url, content=data)
    return response.status_code, response.content


async def lease(harness: CoordinatorHarness, client: CoordinatorClient) -> tuple[TaskOrder, str]:
    """A task, and the upload link for the file that the node has announced."""
    await client.register()
    task = await harness.claim(client)
    return task, (await upload(client, task, FILE)).url


async def hand_in(harness: CoordinatorHarness, client: CoordinatorClient, receipt: Receipt) -> SubmissionResponse:
    """Send the receipt without a further upload."""
    body = SubmissionRequest(receipt=ReceiptBody.of(receipt), signature=sign(harness, receipt))
    answer = await client._post("/v1/submissions", body.model_dump_json().encode())
    return SubmissionResponse.model_validate_json(answer)


async def read_order(harness: CoordinatorHarness) -> bytes:
    """Return the file that a validator gets to judge."""
    harness.run_job("dispatch_validation")
    async with harness.client("validator-0") as client:
        order: Any = await claim_order(client, wait_seconds=0)
        return await client.get_object(order.url, max_bytes=MAX_FILE)


@pytest.mark.parametrize("other", [b"y" * len(FILE), b"y" * (MAX_FILE + 1), b""], ids=["other", "oversized", "empty"])
async def test_submit__object_overwritten_after_the_receipt__validators_and_trainer_get_the_first(
    harness: CoordinatorHarness, other: bytes
):
    async with harness.client("node") as client:
        task, link = await lease(harness, client)
        assert (await call(link, FILE))[0] == 200
        await hand_in(harness, client, build_receipt(harness, task, FILE))
    assert (await call(link, other))[0] == 200, "the link of an S3 store allows it for minutes"
    assert await read_order(harness) == FILE
    await decide(harness)
    async with harness.client("node-2") as client:
        await client.register()
        second = await harness.claim(client)
        receipt = build_receipt(harness, second, b"second", node="node-2")
        await client.submit(receipt, sign(harness, receipt, "node-2"), b"second")
    await decide(harness)
    async with harness.client("trainer") as client:
        batch = await client.claim_batch(0, wait_seconds=0)
        assert [await client.get_object(item.url, max_bytes=MAX_FILE) for item in batch.items] == [FILE, b"second"]


@pytest.mark.parametrize(
    ("found", "refusal"),
    [
        (None, ("missing", 404)),
        (b"y" * len(FILE), ("digest_mismatch", 400)),
        (b"y" * (MAX_FILE + 1), ("oversized", 413)),
    ],
    ids=["missing", "other", "oversized"],
)
async def test_submit__object_is_not_what_the_receipt_names__is_refused_and_may_be_mended(
    harness: CoordinatorHarness, s3: S3, found: bytes | None, refusal: tuple[str, int]
):
    async with harness.client("node") as client:
        task, link = await lease(harness, client)
        receipt = build_receipt(harness, task, FILE)
        if found is not None:
            assert (await call(link, found))[0] == 200
        assert await refuse(hand_in(harness, client, receipt)) == refusal
        assert not [key for key in s3.read_objects() if "/submissions/" in key]
        answer = await client.submit(receipt, sign(harness, receipt), FILE)
    assert await read_order(harness) == FILE
    assert answer.signed_at > 0


async def test_submit__again__needs_no_upload_and_is_given_no_link(harness: CoordinatorHarness, s3: S3):
    async with harness.client("node") as client:
        task, link = await lease(harness, client)
        assert (await call(link, FILE))[0] == 200
        receipt = build_receipt(harness, task, FILE)
        first = await hand_in(harness, client, receipt)
        assert list(s3.read_objects().values()) == [FILE], "the upload is deleted, the copy stays"
        assert (await upload(client, task, FILE)).url is None
        assert await hand_in(harness, client, receipt) == first
        assert await client.submit(receipt, sign(harness, receipt), FILE) == first
        assert await refuse(hand_in(harness, client, build_receipt(harness, task, b"other"))) == ("equivocation", 409)


async def test_open_upload__link__is_for_one_key_and_verb(harness: CoordinatorHarness, s3: S3):
    async with harness.client("node") as client:
        task, link = await lease(harness, client)
        key = f"submissions/{harness.ctx.ledger.pool}/{task.task}-{task.lease}/{canonical.sha256(FILE)}.parquet"
    assert (await call(link.replace("/uploads/", "/submissions/"), FILE))[0] == 403
    assert (await call(link, method="GET"))[0] == 403
    assert (await call(link.replace(link[-8:], "00000000"), FILE))[0] == 403
    assert s3.read_objects() == {}
    assert f"/{key.replace('submissions/', 'uploads/')}?" in link


async def test_link__put_then_get__is_the_same_bytes(store: ObjectStore, s3: S3):
    assert (await call(sign_link(store, "PUT"), FILE))[0] == 200
    assert store.get(KEY, max_bytes=len(FILE)) == FILE
    assert await call(sign_link(store, "GET"), method="GET") == (200, FILE)
    assert s3.read_objects() == {f"{BUCKET}/covey/{KEY}": FILE}


@pytest.mark.parametrize(
    ("signed", "method", "old", "new"),
    [
        ("PUT", "GET", "", ""),
        ("PUT", "DELETE", "", ""),
        ("GET", "PUT", "", ""),
        ("GET", "DELETE", "", ""),
        ("PUT", "PUT", "7-9", "7-8"),
        ("GET", "GET", "7-9", "7-8"),
        ("PUT", "PUT", "X-Amz-Expires=60", "X-Amz-Expires=61"),
        ("GET", "GET", "X-Amz-Expires=60", "X-Amz-Expires=61"),
        ("PUT", "PUT", "&X-Amz-Signature=", "&X-Amz-Signature=0"),
        ("GET", "GET", "&X-Amz-Signature=", "&X-Amz-Signature=0"),
    ],
)
async def test_link__used_for_something_else__is_refused(
    store: ObjectStore, s3: S3, signed: Method, method: str, old: str, new: str
):
    store.put_named_by_content(KEY, b"kept")
    store.put_named_by_content(KEY.replace("7-9", "7-8"), b"kept")
    before = s3.read_objects()
    link = sign_link(store, signed)
    assert old in link
    status, content = await call(link.replace(old, new), FILE if method == "PUT" else None, method)
    assert (status, b"kept" in content) == (403, False)
    assert s3.read_objects() == before


async def test_link__without_its_signature__is_refused(store: ObjectStore, s3: S3):
    store.put_named_by_content(KEY, b"kept")
    link = sign_link(store, "PUT").partition("?")[0]
    assert (await call(link, FILE))[0] >= 400
    status, content = await call(link, method="GET")
    assert status >= 400
    assert b"kept" not in content
    assert s3.read_objects() == {f"{BUCKET}/covey/{KEY}": b"kept"}


async def test_link__expired__is_refused(store: ObjectStore, s3: S3):
    store.put_named_by_content(KEY, b"kept")
    links: dict[str, str] = {method: sign_link(store, method, seconds=1) for method in ("PUT", "GET")}
    deadline = time.monotonic() + 60
    while (await call(links["GET"], method="GET"))[0] == 200:
        assert time.monotonic() < deadline, "the link never expires"
        await asyncio.sleep(0.2)
    assert (await call(links["GET"], method="GET"))[0] == 403
    assert (await call(links["PUT"], FILE))[0] == 403
    assert s3.read_objects() == {f"{BUCKET}/covey/{KEY}": b"kept"}


async def test_link__signed_with_another_secret_key__is_refused(
    store: ObjectStore, s3: S3, monkeypatch: pytest.MonkeyPatch
):
    store.put_named_by_content(KEY, b"kept")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    forger = open_store()
    assert (await call(sign_link(forger, "PUT"), FILE))[0] == 403
    assert (await call(sign_link(forger, "GET"), method="GET"))[0] == 403
    with pytest.raises(TransientError, match="store_unavailable"):
        forger.put_named_by_content(KEY, FILE)
    assert s3.read_objects() == {f"{BUCKET}/covey/{KEY}": b"kept"}


def test_store__put_get_and_delete__work_without_conditional_put(store: ObjectStore, s3: S3):
    """A retry puts an object again, and a large one is put whole."""
    large = bytes(LARGE)
    for data in (FILE, FILE, large):
        store.put_named_by_content(KEY, data)
        assert store.get(KEY, max_bytes=LARGE) == data
    for _ in range(2):
        store.delete(KEY)
        with pytest.raises(ProtocolError, match="missing"):
            store.get(KEY, max_bytes=LARGE)
    assert s3.read_objects() == {}
