"""Encoding and recovery agree with eth-account's for every message, whatever its values."""

from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils.address import to_checksum_address
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.chain.wallet import wallet_from_key
from covey.errors import ProtocolError
from covey.protocol import eip712, messages
from covey.protocol.eip712 import DOMAIN_VERSION, Domain
from covey.protocol.ids import Address, hash_from_bytes

pytestmark = pytest.mark.unit
KINDS = (messages.NodeRegistration, messages.Receipt, messages.Countersignature, messages.Verdict)
ACCOUNT, KEY = Account.from_key(b"\x11" * 32), wallet_from_key(b"\x11" * 32)
addresses = st.binary(min_size=20, max_size=20).map(to_checksum_address)


def draw_value(kind: str) -> st.SearchStrategy[Any]:
    if kind.startswith("uint"):
        return st.integers(0, (1 << int(kind[4:])) - 1)
    return addresses if kind == "address" else st.binary(min_size=32, max_size=32).map(hash_from_bytes)


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@settings(max_examples=20)
@given(st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_sign__any_values__is_what_eth_account_signs(kind: Any, data: st.DataObject):
    values = {name: data.draw(draw_value(solidity)) for name, solidity in kind.TYPES.items()}
    domain = Domain(chain_id=data.draw(st.integers(0, 2**64)), contract=Address(data.draw(addresses)))
    message = kind(**values)
    theirs = encode_typed_data(
        {"name": "Covey", "version": DOMAIN_VERSION, "chainId": domain.chain_id, "verifyingContract": domain.contract},
        {kind.__name__: [{"name": camel(name), "type": solidity} for name, solidity in kind.TYPES.items()]},
        {camel(name): value for name, value in values.items()},
    )
    assert eip712.compute_struct_hash(message) == hash_from_bytes(theirs.body)
    signature = "0x" + bytes(ACCOUNT.sign_message(theirs).signature).hex()
    assert eip712.sign(message, domain, KEY) == signature
    assert eip712.recover_signer(message, domain, signature) == KEY.address


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pool", -1),
        ("pool", 1 << 256),
        ("pool", True),
        ("pool", "1"),
        ("groups", 1 << 32),
        ("node", "0x" + "ab" * 20),
        ("node", 7),
        ("work_key", "0x" + "AB" * 32),
        ("work_key", "0x" + "ab" * 31),
        ("work_key", b"\x00" * 32),
    ],
)
def test_compute_struct_hash__value_that_does_not_fit__is_refused(field: str, value: Any):
    values: dict[str, Any] = dict.fromkeys(messages.Receipt.TYPES, 1)
    values |= {"node": KEY.address, "contributor": KEY.address, "work_key": "0x" + "ab" * 32} | {field: value}
    with pytest.raises(ProtocolError) as caught:
        eip712.compute_struct_hash(messages.Receipt(**values))
    assert caught.value.code == "bad_message"
    assert f"the field {field} of Receipt" in caught.value.message
