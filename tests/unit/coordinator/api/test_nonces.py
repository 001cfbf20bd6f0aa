import pytest

from coordinator.api.nonces import Nonces
from covey.errors import ProtocolError
from covey.protocol.http_signatures import SKEW_SECONDS, WINDOW_SECONDS, RequestSignature

pytestmark = pytest.mark.unit


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


def refuse(nonces: Nonces, signature: RequestSignature, now: float) -> str:
    with pytest.raises(ProtocolError) as caught:
        nonces.use(signature, now)
    return caught.value.code


def test_use__again__is_refused_for_the_same_signer_only():
    nonces = Nonces(started_at=1000.0)
    nonces.use(sign(), 1001)
    assert refuse(nonces, sign(), 1002) == "replayed_nonce"
    assert refuse(nonces, sign(signer="0xa"), 1002) == "replayed_nonce", "the case of an address means nothing"
    nonces.use(sign("m"), 1002)
    nonces.use(sign(signer="0xB"), 1002)


def test_use__signed_before_the_start__is_refused():
    nonces = Nonces(started_at=1000.9)
    assert refuse(nonces, sign(created=999), 1001) == "expired_request"
    nonces.use(sign(created=1000), 1001)


def test_use__as_long_as_a_signature_is_valid__is_remembered_and_then_forgotten():
    nonces = Nonces(started_at=1000.0)
    for second in range(1000, 1400):
        signature = sign(f"n{second}", created=second + SKEW_SECONDS)
        nonces.use(signature, second)
        oldest_valid = max(1000, second - WINDOW_SECONDS - SKEW_SECONDS)
        early = sign(f"n{oldest_valid}", created=oldest_valid + SKEW_SECONDS)
        assert refuse(nonces, early, second) == "replayed_nonce"
        assert len(nonces) <= 2 * (WINDOW_SECONDS + 2 * SKEW_SECONDS) + 2


def test_use__clock_set_back__forgets_nothing_that_could_pass():
    nonces = Nonces(started_at=1000.0)
    nonces.use(sign("a", created=1200), 1200)
    nonces.use(sign("b", created=1150), 1150)
    assert refuse(nonces, sign("a", created=1200), 1200) == "replayed_nonce"
