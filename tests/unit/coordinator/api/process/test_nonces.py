import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis import asyncio as redis
from redis.exceptions import RedisError

from coordinator.api.process.nonces import MemoryNonces, Nonces, RedisNonces
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.http_signatures import SKEW_SECONDS, WINDOW_SECONDS, RequestSignature
from covey.runtime.http import find_free_ports
from tests.fakes.private_servers import open_private_redis

pytestmark = pytest.mark.unit
REDIS = os.environ.get("COVEY_TEST_REDIS", "redis://127.0.0.1:6379/12")


def sign(nonce: str = "n", *, signer: str = "0xA", created: int = 1000) -> RequestSignature:
    return RequestSignature(
        signer=signer,
        nonce=nonce,
        created=created,
        expires=created + WINDOW_SECONDS,
        content_digest="",
        parameters="",
        value=b"",
    )


async def open_redis(url: str = REDIS) -> RedisNonces:
    """Return nonces of a name of their own. Skips the test if no Redis answers."""
    try:
        async with redis.from_url(url, socket_connect_timeout=10) as client:
            await client.ping()
    except RedisError as error:
        pytest.skip(f"no Redis answers: {error}")
    return RedisNonces(url, secrets.token_hex(8))


@pytest.fixture(params=["memory", "redis"])
async def nonces(request: pytest.FixtureRequest) -> AsyncIterator[Nonces]:
    """Nonces that are kept since the time 1000."""
    if request.param == "memory":
        yield MemoryNonces(started_at=1000.0)
        return
    shared = await open_redis()
    await shared.use(sign("first", signer="0xF"), 1000.0)
    yield shared
    await shared.close()


async def refuse(nonces: Nonces, signature: RequestSignature, now: float) -> str:
    with pytest.raises(ProtocolError) as caught:
        await nonces.use(signature, now)
    return caught.value.code


async def test_use__clock_was_minutes_ahead_when_the_keeping_began__serves_once_it_is_right(nonces: Nonces):
    """Otherwise all requests are refused until the time that was wrong has come."""
    assert await refuse(nonces, sign("a", created=799), 800.0) == "expired_request"
    await nonces.use(sign("b", created=801), 801.0)
    assert await refuse(nonces, sign("c", created=799), 802.0) == "expired_request"


async def test_use__again__is_refused_for_the_same_signer_only(nonces: Nonces):
    await nonces.use(sign(), 1001)
    assert await refuse(nonces, sign(), 1002) == "replayed_nonce"
    assert await refuse(nonces, sign(signer="0xa"), 1002) == "replayed_nonce", "the case of an address means nothing"
    await nonces.use(sign("m"), 1002)
    await nonces.use(sign(signer="0xB"), 1002)


async def test_use__signed_before_the_keeping_began__is_refused(nonces: Nonces):
    assert await refuse(nonces, sign(created=999), 1001) == "expired_request"
    await nonces.use(sign("m", created=1000), 1001)


async def test_use__as_long_as_a_signature_is_valid__is_remembered_and_then_forgotten():
    nonces = MemoryNonces(started_at=1000.0)
    for second in range(1000, 1400):
        signature = sign(f"n{second}", created=second + SKEW_SECONDS)
        await nonces.use(signature, second)
        oldest_valid = max(1000, second - WINDOW_SECONDS - SKEW_SECONDS)
        early = sign(f"n{oldest_valid}", created=oldest_valid + SKEW_SECONDS)
        assert await refuse(nonces, early, second) == "replayed_nonce"
        assert len(nonces) <= 2 * (WINDOW_SECONDS + 2 * SKEW_SECONDS) + 2


async def test_use__clock_set_back__forgets_nothing_that_could_pass():
    nonces = MemoryNonces(started_at=1000.0)
    await nonces.use(sign("a", created=1200), 1200)
    await nonces.use(sign("b", created=1150), 1150)
    assert await refuse(nonces, sign("a", created=1200), 1200) == "replayed_nonce"


async def test_use__redis__two_processes_share_what_was_used():
    one = await open_redis()
    other = RedisNonces(REDIS, one.name)
    await one.use(sign("first"), 1000.0)
    assert await refuse(other, sign("first"), 1001.0) == "replayed_nonce"
    results = [await is_refused(nonces) for nonces in (one, other, one)]
    assert results == [False, True, True]
    await one.close()
    await other.close()


async def is_refused(nonces: Nonces) -> bool:
    try:
        await nonces.use(sign("second", created=1001), 1001.0)
    except ProtocolError:
        return True
    return False


async def test_use__redis_was_emptied__refuses_what_was_signed_before():
    nonces = await open_redis()
    await nonces.use(sign("old", created=1000), 1000.0)
    async with redis.from_url(REDIS) as client:
        await client.delete(*[key async for key in client.scan_iter(f"covey/{nonces.name}/*")])
    assert await refuse(nonces, sign("old", created=1000), 1010.0) == "expired_request"
    await nonces.use(sign("new", created=1010), 1010.0)
    await nonces.close()


async def test_use__nothing_answers__is_a_transient_error():
    (port,) = find_free_ports(1)
    nonces = RedisNonces(f"redis://127.0.0.1:{port}/0", "nobody")
    with pytest.raises(TransientError, match="nonces_unavailable"):
        await nonces.use(sign(), 1000.0)
    await nonces.close()


async def test_use__redis_was_killed_and_started_from_a_snapshot__refuses_what_was_signed_before(tmp_path: Path):
    """The nonces after the snapshot are lost, and the note of the first run is not."""
    with open_private_redis(tmp_path) as server:
        if server is None:
            pytest.skip("no Redis is installed for a test to start")
        nonces = RedisNonces(server.url, "pool")
        await nonces.use(sign("first", created=1000), 1000.0)
        async with redis.from_url(server.url) as client:
            await client.save()
        await nonces.use(sign("second", created=1005), 1005.0)
        await nonces.close()
        server.restart()
        nonces = RedisNonces(server.url, "pool")
        assert await refuse(nonces, sign("second", created=1005), 1010.0) == "expired_request"
        await nonces.use(sign("third", created=1010), 1010.0)
        await nonces.close()


def test_nonces__url_that_is_none__is_refused():
    with pytest.raises(OperatorError, match="bad_nonces_url"):
        RedisNonces("queue:6379", "pool")
