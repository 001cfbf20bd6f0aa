import pytest
import rlp
from eth_utils.crypto import keccak

from covey.chain.deploying import predict_address
from covey.devnet.deploy import derive_wallet

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("nonce", [0, 1, 0x7F, 0x80, 0x100, 0x12345])
def test_predict_address__any_nonce__equals_the_hash_of_the_rlp(nonce: int):
    creator = derive_wallet("predict", "a").address
    expected = keccak(rlp.encode([bytes.fromhex(creator[2:]), nonce]))[12:]
    assert predict_address(creator, nonce).lower() == "0x" + expected.hex()
