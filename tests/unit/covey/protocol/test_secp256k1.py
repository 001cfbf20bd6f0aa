import pytest
from coincurve import PrivateKey
from eth_account import Account
from eth_account.messages import encode_defunct
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.protocol.secp256k1 import hash_personal, recover_personal, sign_digest

pytestmark = pytest.mark.unit


@settings(max_examples=25)
@given(st.binary(min_size=32, max_size=32).filter(lambda key: 0 < int.from_bytes(key) < 1 << 255), st.binary())
def test_sign_and_recover__any_message__as_eth_account_does(key, message):
    account = Account.from_key(key)
    signature = bytes(account.sign_message(encode_defunct(message)).signature)
    assert sign_digest(PrivateKey(key), hash_personal(message)) == signature
    assert recover_personal(message, signature) == account.address
    assert recover_personal(message, signature[:64] + bytes([signature[64] - 27])) == account.address
    assert recover_personal(message + b"x", signature) != account.address


@pytest.mark.parametrize(
    "signature",
    [b"", b"\x01" * 64, b"\x01" * 66, bytes(64) + b"\x1b", b"\xff" * 64 + b"\x1b", b"\x01" * 64 + b"\x02"],
    ids=["empty", "short", "long", "zeros", "over_the_order", "bad_v"],
)
def test_recover_personal__no_signature__raises_value_error(signature):
    with pytest.raises(ValueError, match="signature"):
        recover_personal(b"message", signature)
