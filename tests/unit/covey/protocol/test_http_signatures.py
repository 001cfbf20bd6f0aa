import base64
import hashlib
import random
from dataclasses import replace

import pytest
from eth_account import Account
from eth_utils.crypto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.chain.wallet import wallet_from_key
from covey.errors import ProtocolError
from covey.protocol import http_signatures
from covey.protocol.http_signatures import SignedRequest, sign_request, verify_request
from covey.protocol.secp256k1 import hash_personal

pytestmark = pytest.mark.unit

KEY, OTHER = wallet_from_key(b"\x11" * 32), wallet_from_key(b"\x22" * 32)
NOW, CHAIN, NONCE = 1_700_000_000, 31337, "abcdefghijklmnop"
REQUEST = SignedRequest(
    method="POST", authority="127.0.0.1:8000", path="/v1/tasks/claim", query="a=1&b=2", body=b'{"x":1}'
)
HEADERS = sign_request(REQUEST, KEY, chain_id=CHAIN, now=NOW, nonce=NONCE)


def refuse(request=REQUEST, headers=HEADERS, *, chain_id=CHAIN, now=NOW):
    with pytest.raises(ProtocolError) as caught:
        verify_request(request, headers, chain_id=chain_id, now=now)
    assert caught.value.status == 401
    return caught.value.code


def sign_text(parameters, request=REQUEST, key=KEY):
    signature = key.sign_digest(hash_personal(http_signatures.build_signature_base(request, parameters)))
    return HEADERS | {
        "signature-input": f"eth={parameters}",
        "signature": f"eth=:{base64.b64encode(signature).decode()}:",
    }


def test_signature_base__by_hand__as_in_rfc_9421():
    digest = base64.b64encode(hashlib.sha256(b'{"x":1}').digest()).decode()
    parameters = (
        '("@method" "@authority" "@path" "@query" "content-digest");created=1700000000;expires=1700000060'
        f';nonce="{NONCE}";keyid="eip155:31337:{KEY.address}"'
    )
    base = (
        '"@method": POST\n'
        '"@authority": 127.0.0.1:8000\n'
        '"@path": /v1/tasks/claim\n'
        '"@query": ?a=1&b=2\n'
        f'"content-digest": sha-256=:{digest}:\n'
        f'"@signature-params": {parameters}'
    )
    assert http_signatures.build_signature_base(REQUEST, parameters) == base.encode()
    assert HEADERS["signature-input"] == f"eth={parameters}"
    assert HEADERS["content-digest"] == f"sha-256=:{digest}:"
    # The base is signed as a personal message (EIP-191).
    prefixed = keccak(b"\x19Ethereum Signed Message:\n" + str(len(base)).encode() + base.encode())
    raw = base64.b64decode(HEADERS["signature"].removeprefix("eth=:").removesuffix(":"))
    assert Account._recover_hash(prefixed, signature=raw) == KEY.address


def test_content_digest__example_of_rfc_9530():
    digest = http_signatures.compute_content_digest(b'{"hello": "world"}\n')
    assert digest == "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"


@settings(max_examples=25)
@given(
    st.sampled_from(["GET", "POST", "PUT"]),
    st.text(st.characters(codec="ascii", exclude_characters="?\n"), max_size=20),
    st.text(st.characters(codec="ascii"), max_size=20),
    st.binary(max_size=50),
)
def test_verify__signed_request__returns_signer_and_nonce(method, path, query, body):
    request = SignedRequest(method=method, authority="h:1", path="/" + path, query=query, body=body)
    headers = sign_request(request, KEY, chain_id=1, now=NOW, nonce=NONCE)
    verified = verify_request(request, headers, chain_id=1, now=NOW)
    assert (verified.signer, verified.nonce, verified.expires) == (KEY.address, NONCE, NOW + 60)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"method": "PUT"}, "bad_signature"),
        ({"method": "post"}, "bad_signature"),
        ({"authority": "127.0.0.1:8001"}, "bad_signature"),
        ({"authority": "evil.example"}, "bad_signature"),
        ({"path": "/v1/tasks/claim/"}, "bad_signature"),
        ({"path": "/v1/nodes"}, "bad_signature"),
        ({"query": ""}, "bad_signature"),
        ({"query": "b=2&a=1"}, "bad_signature"),
        ({"body": b'{"x":2}'}, "digest_mismatch"),
        ({"body": b""}, "digest_mismatch"),
        ({"path": '/v1/tasks/claim\n"@query": ?a=1&b=2', "query": ""}, "bad_signature"),
    ],
)
def test_verify__altered_component__refused(changes, code):
    assert refuse(replace(REQUEST, **changes)) == code


def test_verify__digest_replaced_with_the_body__refused():
    forged = HEADERS | {"content-digest": http_signatures.compute_content_digest(b"other")}
    assert refuse(replace(REQUEST, body=b"other"), forged) == "bad_signature"


@pytest.mark.parametrize("name", ["signature", "signature-input", "content-digest"])
def test_verify__header_missing__refused(name):
    headers = {key: value for key, value in HEADERS.items() if key != name}
    assert refuse(headers=headers) == "unsigned"


def test_verify__another_chain__refused():
    assert refuse(chain_id=1) == "bad_signature"


def test_verify__signer_is_not_the_one_in_keyid__refused():
    parameters = HEADERS["signature-input"].removeprefix("eth=").replace(KEY.address, OTHER.address)
    assert refuse(headers=sign_text(parameters)) == "bad_signature"


@pytest.mark.parametrize(
    ("age", "is_good"),
    [(-301, False), (-6, False), (-5, True), (-1, True), (0, True), (1, True), (60, True), (61, False), (299, False)],
)
def test_verify__age_in_seconds__accepted_only_inside_the_window(age, is_good):
    if is_good:
        assert verify_request(REQUEST, HEADERS, chain_id=CHAIN, now=NOW + age).signer == KEY.address
    else:
        assert refuse(now=NOW + age) == "expired_request"


@pytest.mark.parametrize(
    ("created", "expires"), [(NOW, NOW + 61), (NOW, NOW + 10**6), (NOW - 100, NOW + 1), (NOW, NOW - 1)]
)
def test_verify__window_is_too_long_or_reversed__refused(created, expires):
    parameters = HEADERS["signature-input"].removeprefix("eth=")
    parameters = parameters.replace(f"created={NOW}", f"created={created}").replace(f"={NOW + 60}", f"={expires}")
    assert refuse(headers=sign_text(parameters)) == "expired_request"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("eth=", ""),
        ("eth=", "sig1="),
        (NONCE, "short"),
        (NONCE, "x" * 65),
        (NONCE, "abcdefghijklmno\n"),
        (' "@query"', ""),
        ('"@method" "@authority"', '"@authority" "@method"'),
        ("eip155", "eip156"),
        (str(NOW), "١٧٠٠٠٠٠٠٠٠"),
        (str(NOW), "-1"),
        (str(NOW), "1" * 13),
        (f";expires={NOW + 60}", ""),
        (KEY.address, KEY.address + "00"),
        (";keyid", ";extra=1;keyid"),
    ],
)
def test_verify__parameters_in_another_form__refused_even_if_well_signed(old, new):
    text = HEADERS["signature-input"].replace(old, new, 1)
    headers = sign_text(text.removeprefix("eth=")) | {"signature-input": text}
    assert refuse(headers=headers) == "bad_signature"


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "eth=::",
        "eth=:AAAA:",
        "eth=:!!!!:",
        "eth=:é:",
        HEADERS["signature"].removeprefix("eth="),
        HEADERS["signature"].removeprefix("eth=:").removesuffix(":"),
        HEADERS["signature"] + "\n",
        "eth=:" + base64.b64encode(bytes(65)).decode() + ":",
        "eth=:" + base64.b64encode(b"\xff" * 65).decode() + ":",
        "eth=:" + base64.b64encode(bytes(64)).decode() + ":",
        "eth=:" + base64.b64encode(bytes(66)).decode() + ":",
    ],
)
def test_verify__malformed_signature__refused(signature):
    assert refuse(headers=HEADERS | {"signature": signature}) == "bad_signature"


def test_verify__1000_mutated_headers__refused_with_a_known_code():
    rng, codes = random.Random(24), set()
    for _ in range(1000):
        headers = dict(HEADERS)
        name = rng.choice(sorted(headers))
        text = headers[name]
        index = rng.randrange(len(text))
        headers[name] = text[:index] + rng.choice(["", chr(rng.randrange(256)), "eth=:", '"', "\n"]) + text[index + 1 :]
        if headers != HEADERS:
            try:
                verify_request(REQUEST, headers, chain_id=CHAIN, now=NOW)
            except ProtocolError as error:
                codes.add(error.code)
            else:
                pytest.fail(f"accepted {headers}")
    assert codes <= {"bad_signature", "digest_mismatch", "expired_request"}
    assert len(codes) >= 2
