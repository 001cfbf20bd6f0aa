import asyncio
import json

import httpx
import pytest

from covey.chain.wallet import wallet_from_key
from covey.errors import ProtocolError, TransientError
from covey.network.coordinator_client import MAX_RESPONSE_BYTES, CoordinatorClient
from covey.protocol import http_signatures
from covey.protocol.api.worker import MAX_INLINE_BYTES, SubmissionRequest, TaskOrder
from covey.protocol.messages import Receipt
from tests.fakes.pool import INSTANCE

pytestmark = pytest.mark.unit

KEY = wallet_from_key(b"\x11" * 32)
NOW, CHAIN = 1_700_000_000, 31337
HANG_S = 60.0
"""Deadline against hanging, in seconds."""
HASH = "0x" + "ab" * 32
RECEIPT = Receipt(
    pool=1,
    task=7,
    lease=9,
    node=KEY.address,
    contributor=KEY.address,
    policy_version=3,
    work_key=HASH,
    groups=2,
    units=64,
    deadline=NOW,
)


class Script(httpx.AsyncBaseTransport):
    """A coordinator that gives scripted answers, one per request."""

    def __init__(self, *answers):
        self.answers, self.requests, self.bodies = list(answers), [], []

    async def handle_async_request(self, request):
        self.requests.append(request)
        self.bodies.append(await request.aread())
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body, *headers = answer
        if not isinstance(body, httpx.AsyncByteStream):
            body = Pieces(body if isinstance(body, bytes) else json.dumps(body).encode())
        return httpx.Response(status, headers=dict(*headers), stream=body)


class Pieces(httpx.AsyncByteStream):
    """A body that arrives in pieces, as from a socket."""

    def __init__(self, data):
        self._data = data

    async def __aiter__(self):
        for start in range(0, len(self._data), 7):
            yield self._data[start : start + 7]


def refusal(code, time=NOW):
    return {"code": code, "message": "because", "time": time}


@pytest.fixture
async def connect():
    opened = []

    def make(*answers, clock=lambda: NOW, base_url="http://coordinator:8000"):
        client = CoordinatorClient(base_url, KEY, chain_id=CHAIN, clock=clock)
        script = Script(*answers)
        client._http._transport = script
        opened.append(client)
        return client, script

    yield make
    for client in opened:
        await client.close()


def verify(request, body, now=NOW):
    signed = http_signatures.SignedRequest(
        method=request.method, authority="coordinator:8000", path=request.url.path, query="", body=body
    )
    return http_signatures.verify_request(signed, request.headers, chain_id=CHAIN, now=now)


async def test_post__is_signed_for_the_configured_authority_with_a_fresh_nonce(connect):
    client, script = connect((200, {}), (200, {}))
    for _ in range(2):
        await client.send_heartbeat(instance=INSTANCE, free_slots=1, cached_version=4)
    signatures = [verify(request, body) for request, body in zip(script.requests, script.bodies, strict=True)]
    assert [each.signer for each in signatures] == [KEY.address] * 2
    assert signatures[0].nonce != signatures[1].nonce
    assert json.loads(script.bodies[0]) == {"instance": INSTANCE, "free_slots": 1, "cached_version": 4}


async def test_get__is_unsigned_and_never_compressed(connect):
    needs = {"engine": "any", "compute_dtype": "float32", "hardware": "any", "execution_contracts": {}, "max_tokens": 9}
    view = {"pool": 1, "params": "{}", "params_hash": "0x" + "ab" * 32, "terms": {}, "requirements": needs}
    view |= {"operator": KEY.address, "signer": KEY.address}
    view |= {"chain_id": 1, "contracts": {}, "token": KEY.address, "start_block": 0}
    client, script = connect((200, view | {"relays": []}))
    assert (await client.get_pool()).pool == 1
    assert "signature" not in script.requests[0].headers
    assert script.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("offset", [-300, 300, 86_400])
async def test_clock__minutes_off__is_corrected_by_the_coordinators(connect, offset):
    """A client whose clock is five minutes off corrects it and stays correct (threats.md, row 24)."""
    client, script = connect((401, refusal("expired_request")), (200, {}), (200, {}), clock=lambda: NOW + offset)
    await client.send_heartbeat(instance=INSTANCE, free_slots=1, cached_version=None)
    await client.send_heartbeat(instance=INSTANCE, free_slots=1, cached_version=None)
    with pytest.raises(ProtocolError, match="expired_request"):
        verify(script.requests[0], script.bodies[0])
    assert verify(script.requests[1], script.bodies[1]).signer == KEY.address
    assert verify(script.requests[2], script.bodies[2]).signer == KEY.address
    assert len(script.requests) == 3
    assert client.now() == NOW


async def test_clock__refused_twice__is_not_retried_again(connect):
    client, script = connect(*[(401, refusal("expired_request", NOW + 1000))] * 2)
    with pytest.raises(ProtocolError) as caught:
        await client.register()
    assert (caught.value.code, caught.value.status, len(script.requests)) == ("expired_request", 401, 2)


@pytest.mark.parametrize("time", [10**400, -1, "soon", 1.5e308])
async def test_clock__absurd_time__is_a_bad_answer(connect, time):
    client, script = connect((401, refusal("expired_request", time)))
    with pytest.raises(ProtocolError, match="bad_answer"):
        await client.register()
    assert len(script.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_post__5xx__is_transient_with_the_code_if_there_is_one(connect, status):
    client, _ = connect((status, refusal("busy")), (status, b"<html>"))
    with pytest.raises(TransientError, match="busy: because"):
        await client.register()
    with pytest.raises(TransientError, match="bad_answer"):
        await client.register()


@pytest.mark.parametrize(("status", "code"), [(400, "malformed"), (401, "replayed_nonce"), (409, "lease_expired")])
async def test_post__4xx__refused_with_code_and_status(connect, status, code):
    client, _ = connect((status, refusal(code)))
    with pytest.raises(ProtocolError) as caught:
        await client.register()
    assert (caught.value.code, caught.value.status) == (code, status)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_get__redirect__is_not_followed(connect, status):
    client, script = connect((status, b"", {"location": "http://169.254.169.254/"}))
    with pytest.raises(ProtocolError, match="bad_answer"):
        await client.get_object("http://coordinator:8000/x", max_bytes=9)
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("x"),
        httpx.ConnectTimeout("x"),
        httpx.ReadTimeout("x"),
        httpx.RemoteProtocolError("x"),
        httpx.PoolTimeout("x"),
        ConnectionResetError(),
    ],
)
async def test_post__no_answer__transient(connect, error):
    client, _ = connect(error)
    url = "http://coordinator:8000/v1/nodes"
    expected = f"coordinator_unreachable: {url} did not respond: {type(error).__name__}. .*correct coordinator_url"
    with pytest.raises(TransientError, match=expected):
        await client.register()
    client, _ = connect(error)
    with pytest.raises(
        TransientError, match=r"http://store/x did not respond: .*Check that the object store is running"
    ) as caught:
        await client.get_object("http://me:secret@store/x?signature=secret", max_bytes=9)
    assert "secret" not in str(caught.value)


JUNK = [b"", b"{", b"nul", b"[]", b'"x"', b"\xff\xfe", b"[" * 50_000, b'{"surprise": 1}', b"NaN", b'{"node": null}']


@pytest.mark.parametrize("junk", JUNK)
async def test_answers__junk__refused_as_bad_answer(connect, junk):
    calls = [
        lambda c: c.get_pool(),
        lambda c: c.get_status(),
        lambda c: c.get_reward(KEY.address, 1),
        lambda c: c.register(),
        lambda c: c.claim_task(instance=INSTANCE, free_slots=1, cached_version=None, wait_seconds=0),
        lambda c: c.claim_validations(wait_seconds=0),
        lambda c: c.claim_batch(1, wait_seconds=0),
        lambda c: c.list_hard_cases(),
        lambda c: c.submit(RECEIPT, "0x" + "00" * 65, b"file"),
    ]
    for call in calls:
        client, _ = connect((200, junk))
        with pytest.raises(ProtocolError) as caught:
            await call(client)
        assert caught.value.code == "bad_answer"


async def test_list_submissions__junk__refused(connect):
    client, _ = connect((200, {"no": "list"}))
    with pytest.raises(ProtocolError, match="not a valid list of submissions"):
        await client.list_submissions(limit=3)


class Endless(httpx.AsyncByteStream):
    """A body that never ends."""

    def __init__(self):
        self.sent, self.is_closed = 0, False

    async def __aiter__(self):
        while True:
            self.sent += 1 << 20
            yield bytes(1 << 20)

    async def aclose(self):
        self.is_closed = True


async def test_get_object__more_than_allowed__is_aborted_and_closed(connect):
    stream = Endless()
    client, _ = connect((200, stream))
    with pytest.raises(ProtocolError, match="oversized"):
        await client.get_object("http://coordinator:8000/v1/objects/a", max_bytes=5 << 20)
    assert stream.sent <= 7 << 20
    assert stream.is_closed


class Drip(httpx.AsyncByteStream):
    """A body that sends a byte now and then, in time for a timeout that restarts with each byte."""

    async def __aiter__(self):
        while True:
            yield b" "
            await asyncio.sleep(0.01)


async def test_post__answer_is_too_slow__is_abandoned(connect):
    """Otherwise a claim would never end, because a stop signal does not interrupt it."""
    client, _ = connect((200, Drip()))
    client._timeout = 0.1
    with pytest.raises(
        TransientError,
        match="coordinator_unreachable: http://coordinator:8000/v1/nodes did not respond: the response is too slow",
    ):
        await asyncio.wait_for(client.register(), HANG_S)


async def test_put__store_does_not_answer__is_abandoned(connect):
    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            await asyncio.Event().wait()

    client, _ = connect()
    client._http._transport, client._http.timeout = Silent(), httpx.Timeout(0.05)
    with pytest.raises(TransientError, match="coordinator_unreachable"):
        await asyncio.wait_for(client.put_object("http://store/file", b"x" * 10_000), HANG_S)


async def test_post__endless_answer__is_aborted(connect):
    stream = Endless()
    client, _ = connect((200, stream))
    with pytest.raises(ProtocolError, match="oversized"):
        await client.register()
    assert stream.sent <= MAX_RESPONSE_BYTES + (2 << 20)


async def test_get_object__claims_to_be_compressed__is_not_decompressed(connect):
    client, _ = connect((200, b"\x1f\x8b not gzip", {"content-encoding": "gzip"}))
    assert await client.get_object("http://coordinator:8000/a", max_bytes=99) == b"\x1f\x8b not gzip"


async def test_get_object__exactly_the_limit__is_returned(connect):
    client, _ = connect((200, b"12345"))
    assert await client.get_object("http://coordinator:8000/a", max_bytes=5) == b"12345"


@pytest.mark.parametrize(
    "url",
    [
        "http://a:b:c/", "http://x:99999999/", "\x00", "http://ü..x/", "http://x\n/", "http:///a",
        "ftp://coordinator/a", "file:///etc/passwd", "/v1/pool",
    ],
)  # fmt: skip
async def test_get_object__link_is_not_a_web_address__bad_answer(connect, url):
    client, _ = connect((200, b""), (200, b""))
    with pytest.raises(ProtocolError, match="bad_answer"):
        await client.get_object(url, max_bytes=1)
    with pytest.raises(ProtocolError, match="bad_answer"):
        await client.put_object(url, b"x")


async def test_claim__null__returns_none_and_the_timeout_exceeds_the_wait(connect):
    client, script = connect((200, b"null"), (200, {"orders": []}), (200, b"null"))
    assert await client.claim_task(instance=INSTANCE, free_slots=1, cached_version=2, wait_seconds=20) is None
    assert await client.claim_validations(wait_seconds=5) == ()
    assert await client.claim_batch(3, wait_seconds=0) is None
    waits = [request.extensions["timeout"]["read"] for request in script.requests]
    assert waits == [30, 15, 10]
    assert json.loads(script.bodies[0])["wait_seconds"] == 20


async def test_claim__order__is_returned(connect):
    order = {"task": 7, "lease": 9, "policy_version": 3, "record_hash": HASH, "groups": 2, "deadline": 5.5}
    client, _ = connect((200, order))
    answer = await client.claim_task(instance=INSTANCE, free_slots=1, cached_version=None, wait_seconds=0)
    assert answer == TaskOrder(task=7, lease=9, policy_version=3, record_hash=HASH, groups=2, deadline=5.5)


PROMISE = {"receipt_hash": HASH, "signed_at": 1, "due_by": 2, "signature": "0x" + "00" * 65}


async def test_submit__small_file__comes_with_its_receipt(connect):
    client, script = connect((200, PROMISE))
    file = bytes(range(256)) * (MAX_INLINE_BYTES // 256)
    assert (await client.submit(RECEIPT, "0x" + "11" * 65, file)).due_by == 2
    assert [(r.method, r.url.path) for r in script.requests] == [("POST", "/v1/submissions")]
    sent = SubmissionRequest.model_validate_json(script.bodies[0])
    assert (sent.receipt.to_message(), sent.file) == (RECEIPT, file)


async def test_submit__large_file__is_sent_to_the_granted_link_before_its_receipt(connect):
    file = bytes(MAX_INLINE_BYTES + 1)
    client, script = connect((200, {"url": "http://store/put?x=1"}), (201, b""), (200, PROMISE))
    answer = await client.submit(RECEIPT, "0x" + "11" * 65, file)
    assert answer.due_by == 2
    assert [(r.method, r.url.path) for r in script.requests] == [
        ("POST", "/v1/uploads"),
        ("PUT", "/put"),
        ("POST", "/v1/submissions"),
    ]
    assert json.loads(script.bodies[0]) == {"task": 7, "lease": 9, "work_key": HASH, "size": len(file)}
    assert script.bodies[1] == file
    assert "signature" not in script.requests[1].headers
    sent = SubmissionRequest.model_validate_json(script.bodies[2])
    assert (sent.receipt.to_message(), sent.file) == (RECEIPT, None)


async def test_client__context__closes(connect):
    client, _ = connect()
    async with client as same:
        assert same is client
    assert client._http.is_closed


async def test_post__cancelled__passes_through(connect):
    class Hanging(httpx.AsyncBaseTransport):
        async def handle_async_request(self, _):
            await asyncio.sleep(60)

    client, _ = connect()
    client._http._transport = Hanging()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await client.register()
