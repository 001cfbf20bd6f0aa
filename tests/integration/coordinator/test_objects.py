"""Files are transferred by signed links.

They are immutable, have the promised size and hash, and no peer chooses a path.
"""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from covey.errors import ProtocolError
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.worker import MAX_INLINE_BYTES
from tests.fakes.network import CoordinatorHarness
from tests.integration.coordinator.handing import FILE, build_receipt, refuse, sign, submit_uploaded, upload

pytestmark = pytest.mark.integration


@pytest.fixture
async def granted(harness: CoordinatorHarness):
    """(client, task, link for FILE)."""
    async with harness.client("node") as client:
        await client.register()
        task = await harness.claim(client)
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


async def test_put_object__twice__is_immutable(harness: CoordinatorHarness, granted: Any):
    *_, link = granted
    assert await put(link, FILE) == (201, "")
    assert await put(link, FILE) == (201, "")
    assert await put(link, b"y" * len(FILE)) == (400, "digest_mismatch")
    key = urlsplit(link).path.removeprefix("/v1/objects/")
    assert harness.ctx.store.get(key, max_bytes=4096) == FILE


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


async def test_put_object__expired_link__is_refused(harness: CoordinatorHarness, granted: Any):
    *_, link = granted
    harness.clock.offset += 302
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
    """The request is sent raw, because an HTTP client would normalise the path."""
    *_, link = granted
    parts = urlsplit(link)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"{method} {path}?{parts.query} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-length: 1\r\n\r\nx"
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.read(4096), 60)
    writer.close()
    await writer.wait_closed()
    assert answer.split()[1] in (b"403", b"404", b"400"), answer


async def test_submit__file_in_the_local_store__moves_to_where_no_link_leads(harness: CoordinatorHarness, granted: Any):
    client, task, link = granted
    assert await put(link, FILE) == (201, "")
    receipt = build_receipt(harness, task, FILE)
    answer = await submit_uploaded(harness, client, receipt)
    upload_key = urlsplit(link).path.removeprefix("/v1/objects/")
    key = upload_key.replace("uploads/", "submissions/")
    with pytest.raises(ProtocolError, match="missing"):
        harness.ctx.store.get(upload_key, max_bytes=4096)
    assert harness.ctx.store.get(key, max_bytes=4096) == FILE
    assert await put(link.replace("uploads/", "submissions/"), FILE) == (403, "bad_link")
    assert (await upload(client, task, FILE)).url is None
    assert await client.submit(receipt, sign(harness, receipt), FILE) == answer


async def test_submit__file_with_its_receipt__is_kept_and_needs_no_link(harness: CoordinatorHarness, granted: Any):
    client, task, link = granted
    receipt = build_receipt(harness, task, FILE)
    answer = await submit_uploaded(harness, client, receipt, FILE)
    key = urlsplit(link).path.removeprefix("/v1/objects/").replace("uploads/", "submissions/")
    assert harness.ctx.store.get(key, max_bytes=4096) == FILE
    assert await submit_uploaded(harness, client, receipt, FILE) == answer
    assert await submit_uploaded(harness, client, receipt) == answer, "a recorded receipt needs no file"


async def test_submit__file_that_is_not_the_receipt_s_or_too_large__is_refused(
    harness: CoordinatorHarness, granted: Any
):
    client, task, _ = granted
    root = Path(urlsplit(harness.ctx.config.store).path) / "submissions"
    before = set(root.rglob("*.parquet"))
    receipt = build_receipt(harness, task, FILE)
    assert await refuse(submit_uploaded(harness, client, receipt, FILE + b"x")) == ("digest_mismatch", 400)
    large = bytes(MAX_INLINE_BYTES + 1)
    body = {"receipt": ReceiptBody.of(receipt).model_dump(), "signature": sign(harness, receipt)}
    content = json.dumps(body | {"file": base64.urlsafe_b64encode(large).decode()}).encode()
    assert await refuse(client._post("/v1/submissions", content)) == ("bad_body", 422)
    content = json.dumps(body | {"file": "no base64 !"}).encode()
    assert await refuse(client._post("/v1/submissions", content)) == ("bad_body", 422)
    assert set(root.rglob("*.parquet")) == before


async def test_submit__file_above_the_pool_s_limit__is_refused(
    harness: CoordinatorHarness, granted: Any, monkeypatch: pytest.MonkeyPatch
):
    client, task, _ = granted
    limited = harness.ctx.params.model_copy(update={"max_submission_bytes": len(FILE) - 1})
    monkeypatch.setattr(type(harness.ctx), "params", property(lambda _: limited), raising=False)
    receipt = build_receipt(harness, task, FILE)
    assert await refuse(submit_uploaded(harness, client, receipt, FILE)) == ("oversized", 413)


async def test_submit__receipts_that_are_refused__leave_no_file_behind(harness: CoordinatorHarness, granted: Any):
    """Otherwise one lease could fill the store with copies without a row."""
    client, task, _ = granted
    root = Path(urlsplit(harness.ctx.config.store).path) / "submissions"
    before = set(root.rglob("*.parquet"))
    for name in (b"1", b"2"):
        receipt = build_receipt(harness, task, FILE + name, units=10**6)
        assert await refuse(client.submit(receipt, sign(harness, receipt), FILE + name)) == ("bad_receipt", 400)
    assert set(root.rglob("*.parquet")) == before
