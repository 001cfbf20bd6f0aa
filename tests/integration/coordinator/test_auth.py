"""Authentication: altered, replayed, expired and misdirected requests are refused with their stable codes."""

import asyncio
import base64

import httpx
import pytest

from coordinator.domain import nodes
from covey.chain import abi_codec
from covey.chain.structs import BondKind
from covey.errors import ProtocolError
from covey.protocol import http_signatures
from covey.protocol.api.trainer import LearningReport
from covey.protocol.learning_signs import LearningSign
from covey.protocol.secp256k1 import hash_personal
from tests.fakes.network import MIN_STAKE, CoordinatorHarness
from tests.fakes.pool import INSTANCE, make_address
from tests.integration.coordinator.handing import claim_order

pytestmark = pytest.mark.integration
HEARTBEAT = b'{"instance":"%s","free_slots":1}' % INSTANCE.encode()
_NAMED = HEARTBEAT[: -len(b'"free_slots":1}')]


async def code_of(harness: CoordinatorHarness, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    response = await harness.post(path, body, headers)
    return response.status_code, response.json().get("code", "")


async def register(harness: CoordinatorHarness) -> None:
    async with harness.client("node") as client:
        await client.register()


async def test_request__unsigned__is_refused(harness: CoordinatorHarness):
    assert await code_of(harness, "/v1/nodes", b"", {}) == (401, "unsigned")
    headers = harness.sign("node")
    del headers["signature"]
    assert await code_of(harness, "/v1/nodes", b"", headers) == (401, "unsigned")


async def test_request__signed_as_sent__passes_once_and_is_a_replay_after(harness: CoordinatorHarness):
    headers = harness.sign("node")
    assert await code_of(harness, "/v1/nodes", b"", headers) == (200, "")
    assert await code_of(harness, "/v1/nodes", b"", headers) == (401, "replayed_nonce")


@pytest.mark.parametrize(
    ("seconds", "code"),
    [(1, "replayed_nonce"), (59, "replayed_nonce"), (61, "expired_request"), (299, "expired_request")],
)
async def test_request__replayed_later__is_refused_at_any_time(harness: CoordinatorHarness, seconds: int, code: str):
    now = int(harness.clock())
    harness.clock.offset += now - harness.clock()  # so that the clock moves by whole seconds
    headers = harness.sign("node", now=now)
    assert (await code_of(harness, "/v1/nodes", b"", headers))[0] == 200
    harness.clock.offset += seconds
    assert await code_of(harness, "/v1/nodes", b"", headers) == (401, code)


async def test_request__nonce_of_another_signer__is_no_replay(harness: CoordinatorHarness):
    assert (await code_of(harness, "/v1/nodes", b"", harness.sign("node")))[0] == 200
    assert (await code_of(harness, "/v1/nodes", b"", harness.sign("node-2")))[0] == 200


async def test_request__altered_body__is_refused_with_and_without_its_digest(harness: CoordinatorHarness):
    await register(harness)
    headers = harness.sign("node", HEARTBEAT, path="/v1/heartbeat")
    altered = b'{"free_slots":9}'
    assert await code_of(harness, "/v1/heartbeat", altered, headers) == (401, "digest_mismatch")
    headers["content-digest"] = http_signatures.compute_content_digest(altered)
    assert await code_of(harness, "/v1/heartbeat", altered, headers) == (401, "bad_signature")


@pytest.mark.parametrize(
    "signed_for",
    [
        {"path": "/v1/heartbeat"},
        {"query": "a=1"},
        {"method": "PUT"},
        {"authority": "127.0.0.1:1"},
        {"authority": "evil.example"},
        {"chain_id": 1},
    ],
)
async def test_request__signed_for_something_else__is_refused(
    harness: CoordinatorHarness, signed_for: dict[str, object]
):
    assert await code_of(harness, "/v1/nodes", b"", harness.sign("node", **signed_for)) == (401, "bad_signature")


async def test_request__query_added__is_refused(harness: CoordinatorHarness):
    assert await code_of(harness, "/v1/nodes?x=1", b"", harness.sign("node")) == (401, "bad_signature")
    assert (await code_of(harness, "/v1/nodes?x=1", b"", harness.sign("node", query="x=1")))[0] == 200


async def test_request__host_header_of_another__counts_for_nothing(harness: CoordinatorHarness):
    """The authority is the configured one, so the Host header has no effect."""
    other = harness.sign("node", authority="evil.example") | {"host": "evil.example"}
    assert await code_of(harness, "/v1/nodes", b"", other) == (401, "bad_signature")
    right = harness.sign("node") | {"host": "evil.example"}
    assert (await code_of(harness, "/v1/nodes", b"", right))[0] == 200


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.replace('nonce="', 'nonce="x', 1),
        lambda value: value.replace("created=1", "created=2", 1),
        lambda value: value.replace('"@query" ', "", 1),
        lambda value: value + ";extra=1",
        lambda value: "",
    ],
)
async def test_request__signature_input_altered__is_refused(harness: CoordinatorHarness, change):
    headers = harness.sign("node")
    headers["signature-input"] = change(headers["signature-input"])
    status, code = await code_of(harness, "/v1/nodes", b"", headers)
    assert (status, code) in ((401, "bad_signature"), (401, "expired_request"))


@pytest.mark.parametrize("signature", ["eth=:AAAA:", "eth=:?:", "", "eth=:" + "A" * 88 + ":"])
async def test_request__no_signature_in_the_header__is_refused(harness: CoordinatorHarness, signature: str):
    headers = harness.sign("node") | {"signature": signature}
    assert await code_of(harness, "/v1/nodes", b"", headers) == (401, "bad_signature")


async def test_request__longer_window_than_allowed__is_refused(harness: CoordinatorHarness):
    """A signature whose lifetime exceeds a minute is refused."""
    now = int(harness.clock())
    headers = harness.sign("node", now=now)
    parameters = headers["signature-input"].removeprefix("eth=").replace(f"expires={now + 60}", f"expires={now + 61}")
    asked = http_signatures.SignedRequest(
        method="POST", authority=harness.ctx.config.signed_authority, path="/v1/nodes", query="", body=b""
    )
    signature = harness.wallet("node").sign_digest(
        hash_personal(http_signatures.build_signature_base(asked, parameters))
    )
    headers |= {
        "signature-input": f"eth={parameters}",
        "signature": f"eth=:{base64.b64encode(signature).decode()}:",
    }
    assert f"expires={now + 61}" in parameters
    assert await code_of(harness, "/v1/nodes", b"", headers) == (401, "expired_request")


async def test_request__from_the_future__passes_within_the_skew_only(harness: CoordinatorHarness):
    now = int(harness.clock())
    harness.clock.offset += now - harness.clock()
    assert (await code_of(harness, "/v1/nodes", b"", harness.sign("node", now=now + 4)))[0] == 200
    assert await code_of(harness, "/v1/nodes", b"", harness.sign("node", now=now + 8)) == (401, "expired_request")


@pytest.mark.parametrize("minutes", [-5, 5])
async def test_client__five_minutes_off__recovers_by_itself(harness: CoordinatorHarness, minutes: int):
    async with harness.client("node", clock=lambda: harness.clock() + 60 * minutes) as client:
        answer = await client.register()
        await client.send_heartbeat(instance=INSTANCE, free_slots=1, cached_version=None)
    assert answer.contributor == harness.chain.address("contributor")


# -- who is known, and in which harness


async def test_register__node_that_nobody_vouches_for__is_unknown(harness: CoordinatorHarness):
    async with harness.client("stranger") as client:
        for ask in (
            client.register,
            lambda: client.send_heartbeat(instance=INSTANCE, free_slots=1, cached_version=None),
        ):
            with pytest.raises(ProtocolError) as caught:
                await ask()
            assert (caught.value.code, caught.value.status) == ("unknown_node", 403)


async def test_register__too_little_stake__is_refused(harness: CoordinatorHarness, unbond):
    unbond()
    async with harness.client("node") as client:
        with pytest.raises(ProtocolError) as caught:
            await client.register()
    assert caught.value.code == "stake_too_low"
    assert 'Run covey stake add "0.000000000000000001 CVT" --kind' in caught.value.message, (
        "300 staked, 201 unbonded, 100 required"
    )


async def test_register__more_is_locked_than_bonded__names_all_that_is_missing(harness: CoordinatorHarness):
    """A case can lock stake that is unbonding: 300 are unbonding and 60 are locked, so 160 are missing to 100 free."""
    chain, pool, stakes = harness.chain, harness.ctx.ledger.pool, harness.ctx.contracts.stakes
    chain.send("contributor", stakes.unbond(pool, BondKind.CONTRIBUTOR, 3 * MIN_STAKE))
    court, contributor = chain.deployment.slashing_court, chain.address("contributor")
    chain.client.request("anvil_impersonateAccount", court)
    chain.client.request("anvil_setBalance", court, hex(10**18))
    data = "0x" + abi_codec.encode_call("StakeManager", "lock", [pool, contributor, True]).hex()
    chain.client.request("eth_sendTransaction", {"from": court, "to": stakes.address, "data": data})
    chain.client.request("evm_mine")
    assert stakes.locked_of(pool, contributor) == 60
    async with harness.client("node") as client:
        with pytest.raises(ProtocolError) as caught:
            await client.register()
    assert caught.value.code == "stake_too_low"
    assert "has staked 0 CVT, of which cases lock 0.00000000000000006 CVT; its 1 node(s)" in caught.value.message
    assert 'of free stake. Run covey stake add "0.00000000000000016 CVT" --kind' in caught.value.message


async def test_claim_task__stake_unbonded_since__is_refused(harness: CoordinatorHarness, unbond):
    """A lease requires stake now. A registration alone is not enough."""
    async with harness.client("node") as client:
        await client.register()
        unbond()
        await harness.follow()
        with pytest.raises(ProtocolError) as caught:
            await client.claim_task(instance=INSTANCE, free_slots=1, cached_version=None, wait_seconds=0.1)
    assert caught.value.code == "stake_too_low"


@pytest.mark.parametrize("who", ["node", "trainer", "operator", "stranger"])
async def test_validations__who_is_no_validator__is_refused(harness: CoordinatorHarness, who: str):
    async with harness.client(who) as client:
        for ask in (lambda: claim_order(client, wait_seconds=0), client.list_hard_cases):
            with pytest.raises(ProtocolError) as caught:
                await ask()
            assert (caught.value.code, caught.value.status) == ("not_a_validator", 403)


@pytest.mark.parametrize("who", ["node", "validator-0", "operator"])
async def test_batches__who_is_not_the_trainer__is_refused(harness: CoordinatorHarness, who: str):
    async with harness.client(who) as client:
        with pytest.raises(ProtocolError) as caught:
            await client.claim_batch(0, wait_seconds=0)
    assert (caught.value.code, caught.value.status) == ("not_the_trainer", 403)


@pytest.mark.parametrize("who", ["node", "validator-0", "operator", "stranger"])
async def test_learning__who_is_not_the_trainer__is_refused(harness: CoordinatorHarness, who: str):
    async with harness.client(who) as client:
        with pytest.raises(ProtocolError) as caught:
            await client.report_learning(LearningReport(steps=20, signs=(LearningSign.NO_LIVE_GROUP,), pause=True))
        assert (await client.get_status()).pause is None
    assert (caught.value.code, caught.value.status) == ("not_the_trainer", 403)


@pytest.mark.parametrize("is_paused", [True, False])
@pytest.mark.parametrize("who", ["node", "validator-0", "trainer", "stranger"])
async def test_pause__who_is_not_the_operator__is_refused(harness: CoordinatorHarness, who: str, is_paused: bool):
    async with harness.client("operator") as operator:
        await operator.set_paused(not is_paused)
    async with harness.client(who) as client:
        with pytest.raises(ProtocolError) as caught:
            await client.set_paused(is_paused)
        assert ((await client.get_status()).pause is None) == is_paused
    assert (caught.value.code, caught.value.status) == ("not_the_operator", 403)


# -- what is no request at all


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/heartbeat", b""),
        ("/v1/heartbeat", b"{"),
        ("/v1/heartbeat", b"[]"),
        ("/v1/heartbeat", b'{"free_slots":1}'),
        ("/v1/heartbeat", HEARTBEAT.replace(b"0", b"x")),
        ("/v1/heartbeat", _NAMED + b'"free_slots":-1}'),
        ("/v1/heartbeat", _NAMED + b'"free_slots":1,"extra":1}'),
        ("/v1/heartbeat", _NAMED + b'"free_slots":1,"cached_version":9223372036854775808}'),
        ("/v1/tasks/claim", _NAMED + b'"free_slots":1,"wait_seconds":21}'),
        ("/v1/uploads", b'{"task":1,"lease":1,"work_key":"0xAA","size":1}'),
        ("/v1/submissions", b'{"receipt":{},"signature":"0x"}'),
        ("/v1/heartbeat", _NAMED + b'"free_slots":' + b"[" * 50_000 + b"}"),
    ],
)
async def test_body__of_another_schema__is_refused(harness: CoordinatorHarness, path: str, body: bytes):
    async with harness.client("node") as client:
        await client.register()
    assert await code_of(harness, path, body, harness.sign("node", body, path=path)) == (422, "bad_body")


@pytest.mark.parametrize(
    ("who", "path", "body"),
    [
        ("trainer", "/v1/learning", b'{"steps":20,"signs":["<b>rich</b>"],"pause":true}'),
        ("trainer", "/v1/learning", b'{"steps":20,"signs":[%s],"pause":true}' % b",".join([b'"truncated"'] * 6)),
        ("trainer", "/v1/learning", b'{"steps":9223372036854775808,"signs":[],"pause":true}'),
        ("operator", "/v1/pause", b'{"is_paused":true,"reason":"x"}'),
        ("operator", "/v1/pause", b"{}"),
    ],
)
async def test_body__of_trainer_or_operator_with_another_schema__is_refused(
    harness: CoordinatorHarness, who: str, path: str, body: bytes
):
    assert await code_of(harness, path, body, harness.sign(who, body, path=path)) == (422, "bad_body")


async def test_body__declared_too_large__is_refused_unread(harness: CoordinatorHarness):
    body = b" " * (256 * 1024 + 1)
    assert await code_of(harness, "/v1/heartbeat", body, harness.sign("node", body, path="/v1/heartbeat")) == (
        413,
        "oversized",
    )


@pytest.mark.parametrize("path", ["/v1/heartbeat", "/v1/nodes", "/v1/objects/submissions/1/a"])
async def test_body__too_large_in_chunks__is_refused(harness: CoordinatorHarness, path: str):
    async def chunks():
        for _ in range(20):
            yield b" " * 16_384

    await register(harness)
    async with httpx.AsyncClient(trust_env=False) as http:
        send = http.put if "objects" in path else http.post
        response = await send(harness.url + path, content=chunks(), headers=harness.sign("node", path=path))
    # an object's body is not read before its link is checked
    expected = (403, "bad_link") if "objects" in path else (413, "oversized")
    assert (response.status_code, response.json()["code"]) == expected


async def test_body__deeply_nested__is_refused_and_the_process_lives(harness: CoordinatorHarness):
    async with httpx.AsyncClient(trust_env=False) as http:
        for body in (b"[" * 150_000, b'{"a":' * 40_000):
            headers = {"content-type": "application/json"}
            response = await http.post(harness.url + "/v1/heartbeat", content=body, headers=headers)
            assert (response.status_code, response.json()["code"]) == (401, "unsigned"), "nobody reads it"
        assert (await http.get(harness.url + "/v1/status")).status_code == 200


async def test_body__length_that_is_no_number__is_refused_by_somebody(harness: CoordinatorHarness):
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.ctx.config.port)
    writer.write(b"POST /v1/nodes HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(64), 60)
    writer.close()
    await writer.wait_closed()
    assert answer.split()[1] in (b"400", b"413")


async def test_path__that_is_none__has_a_code(harness: CoordinatorHarness):
    async with httpx.AsyncClient(trust_env=False) as http:
        missing = await http.get(harness.url + "/v1/nothing")
        wrong = await http.get(harness.url + "/v1/heartbeat")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")


async def test_register__more_nodes_than_the_stake_backs__is_refused(harness: CoordinatorHarness):
    """Stake belongs to a contributor, and each of its nodes needs a share."""
    with harness.ctx.database.write() as rows:
        for name in ("b", "c", "d"):
            contributor = harness.chain.address("contributor")
            nodes.register_node(rows, node=make_address(name), contributor=contributor)
    async with harness.client("node") as client:
        with pytest.raises(ProtocolError) as caught:
            await client.register()
    assert caught.value.code == "stake_too_low"


@pytest.mark.parametrize("opening", ["[", '{"a":'])
async def test_request__body_nested_deeply__is_refused(harness: CoordinatorHarness, opening: str):
    await register(harness)
    body = (opening * 30_000).encode()[: 60 << 10]
    status, code = await code_of(harness, "/v1/heartbeat", body, harness.sign("node", body, path="/v1/heartbeat"))
    assert (status, code) == (422, "bad_body")
