"""With an S3 store, whose links bind neither size nor content: what is judged is what was countersigned."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from covey.network.coordinator_client import CoordinatorClient
from covey.protocol import canonical
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.worker import SubmissionAnswer, SubmissionRequest, TaskOrder
from covey.protocol.messages import Receipt
from tests.fakes.network import Office, create_pool, open_office, reset
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
def standing(running: Chain, s3: FakeS3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    params = make_params(max_submission_bytes=MAX_FILE, lease_seconds=30, max_staleness=1, epoch_leaves=2)
    pool = create_pool(running, params)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        home = tmp_path_factory.mktemp("office")
        with open_office(running, pool, home, store_url="s3://bucket/covey") as office:
            yield office


@pytest.fixture
def office(standing: Office, s3: FakeS3) -> Iterator[Office]:
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


async def lease(office: Office, client: CoordinatorClient) -> tuple[TaskOrder, str]:
    """A task, and the link for the file that the node announces for it."""
    await client.register()
    task = await office.claim(client)
    return task, (await upload(client, task, FILE)).url


async def hand_in(office: Office, client: CoordinatorClient, receipt: Receipt) -> SubmissionAnswer:
    """The receipt alone, without another upload."""
    body = SubmissionRequest(receipt=ReceiptBody.of(receipt), signature=sign(office, receipt))
    answer = await client._post("/v1/submissions", body.model_dump_json().encode())
    return SubmissionAnswer.model_validate_json(answer)


async def read_order(office: Office) -> bytes:
    """The file that a validator is given to judge."""
    office.run_job("dispatch_validation")
    async with office.client("validator-0") as client:
        order: Any = await client.claim_validation(wait_seconds=0)
        return await client.get_object(order.url, max_bytes=MAX_FILE)


@pytest.mark.parametrize("other", [b"y" * len(FILE), b"y" * (MAX_FILE + 1), b""], ids=["other", "oversized", "empty"])
async def test_submit__object_overwritten_after_the_receipt__validators_and_trainer_get_the_first(
    office: Office, other: bytes
):
    async with office.client("node") as client:
        task, link = await lease(office, client)
        assert (await call(link, FILE))[0] == 200
        await hand_in(office, client, build_receipt(office, task, FILE))
    assert (await call(link, other))[0] == 200, "the link of an S3 store allows it for minutes"
    assert await read_order(office) == FILE
    await decide(office)
    async with office.client("node-2") as client:
        await client.register()
        second = await office.claim(client)
        receipt = build_receipt(office, second, b"second", node="node-2")
        await client.submit(receipt, sign(office, receipt, "node-2"), b"second")
    await decide(office)
    async with office.client("trainer") as client:
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
    office: Office, s3: FakeS3, found: bytes | None, refusal: tuple[str, int]
):
    async with office.client("node") as client:
        task, link = await lease(office, client)
        receipt = build_receipt(office, task, FILE)
        if found is not None:
            assert (await call(link, found))[0] == 200
        assert await refuse(hand_in(office, client, receipt)) == refusal
        assert not [key for key in s3.objects if "/submissions/" in key]
        answer = await client.submit(receipt, sign(office, receipt), FILE)
    assert await read_order(office) == FILE
    assert answer.signed_at > 0


async def test_submit__again__needs_no_upload_and_is_given_no_link(office: Office, s3: FakeS3):
    async with office.client("node") as client:
        task, link = await lease(office, client)
        assert (await call(link, FILE))[0] == 200
        receipt = build_receipt(office, task, FILE)
        first = await hand_in(office, client, receipt)
        assert list(s3.objects.values()) == [FILE], "the upload is deleted, the copy stays"
        assert (await upload(client, task, FILE)).url is None
        assert await hand_in(office, client, receipt) == first
        assert await client.submit(receipt, sign(office, receipt), FILE) == first
        assert await refuse(hand_in(office, client, build_receipt(office, task, b"other"))) == ("equivocation", 409)


async def test_open_upload__link__is_for_one_key_and_verb(office: Office, s3: FakeS3):
    async with office.client("node") as client:
        task, link = await lease(office, client)
        key = f"submissions/{office.ctx.ledger.pool}/{task.task}-{task.lease}/{canonical.sha256(FILE)}.parquet"
    assert (await call(link.replace("/uploads/", "/submissions/"), FILE))[0] == 403
    assert (await call(link, method="GET"))[0] == 403
    assert (await call(link.replace(link[-8:], "00000000"), FILE))[0] == 403
    assert s3.objects == {}
    assert f"/{key.replace('submissions/', 'uploads/')}?" in link
