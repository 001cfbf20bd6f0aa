"""An S3 store, whose links fix neither size nor content: validators get the file that was countersigned."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from covey.network.coordinator_client import CoordinatorClient
from covey.protocol import canonical
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.worker import SubmissionRequest, SubmissionResponse, TaskOrder
from covey.protocol.messages import Receipt
from tests.fakes.network import CoordinatorHarness, create_pool, open_harness, reset
from tests.fakes.pool import make_params
from tests.fakes.s3 import FakeS3, open_s3
from tests.integration.chain.conftest import Chain
from tests.integration.coordinator.conftest import MAX_FILE
from tests.integration.coordinator.handing import FILE, build_receipt, decide, refuse, sign, upload

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def s3() -> Iterator[FakeS3]:
    with open_s3() as server:
        yield server


@pytest.fixture(scope="module")
def standing(running: Chain, s3: FakeS3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorHarness]:
    params = make_params(max_submission_bytes=MAX_FILE, lease_seconds=30, max_staleness=1, epoch_leaves=2)
    pool = create_pool(running, params)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        home = tmp_path_factory.mktemp("coordinator")
        with open_harness(running, pool, home, store_url="s3://bucket/covey") as harness:
            yield harness


@pytest.fixture
def harness(standing: CoordinatorHarness, s3: FakeS3) -> Iterator[CoordinatorHarness]:
    s3.objects.clear()
    snapshot = standing.chain.client.request("evm_snapshot")
    reset(standing)
    yield standing
    standing.chain.client.request("evm_revert", snapshot)
    standing.chain.client.request("anvil_setNextBlockBaseFeePerGas", hex(10**9))


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
        order: Any = await client.claim_validation(wait_seconds=0)
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
    harness: CoordinatorHarness, s3: FakeS3, found: bytes | None, refusal: tuple[str, int]
):
    async with harness.client("node") as client:
        task, link = await lease(harness, client)
        receipt = build_receipt(harness, task, FILE)
        if found is not None:
            assert (await call(link, found))[0] == 200
        assert await refuse(hand_in(harness, client, receipt)) == refusal
        assert not [key for key in s3.objects if "/submissions/" in key]
        answer = await client.submit(receipt, sign(harness, receipt), FILE)
    assert await read_order(harness) == FILE
    assert answer.signed_at > 0


async def test_submit__again__needs_no_upload_and_is_given_no_link(harness: CoordinatorHarness, s3: FakeS3):
    async with harness.client("node") as client:
        task, link = await lease(harness, client)
        assert (await call(link, FILE))[0] == 200
        receipt = build_receipt(harness, task, FILE)
        first = await hand_in(harness, client, receipt)
        assert list(s3.objects.values()) == [FILE], "the upload is deleted, the copy stays"
        assert (await upload(client, task, FILE)).url is None
        assert await hand_in(harness, client, receipt) == first
        assert await client.submit(receipt, sign(harness, receipt), FILE) == first
        assert await refuse(hand_in(harness, client, build_receipt(harness, task, b"other"))) == ("equivocation", 409)


async def test_open_upload__link__is_for_one_key_and_verb(harness: CoordinatorHarness, s3: FakeS3):
    async with harness.client("node") as client:
        task, link = await lease(harness, client)
        key = f"submissions/{harness.ctx.ledger.pool}/{task.task}-{task.lease}/{canonical.sha256(FILE)}.parquet"
    assert (await call(link.replace("/uploads/", "/submissions/"), FILE))[0] == 403
    assert (await call(link, method="GET"))[0] == 403
    assert (await call(link.replace(link[-8:], "00000000"), FILE))[0] == 403
    assert s3.objects == {}
    assert f"/{key.replace('submissions/', 'uploads/')}?" in link
