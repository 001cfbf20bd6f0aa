"""Permits against the values that eth_account computes, and tokens that report another token's domain."""

from dataclasses import dataclass, replace
from typing import cast

import pytest
from eth_account import Account
from eth_utils.crypto import keccak

from covey.chain.permits import compute_separator, make_permit
from covey.chain.structs import SignedPermit
from covey.chain.token import Token
from covey.chain.wallet import Wallet
from covey.errors import ProtocolError
from covey.protocol.ids import Address, Hash, hash_from_bytes

pytestmark = pytest.mark.unit
OWNER = Wallet(keccak(text="owner"))
TOKEN = Address("0x" + 40 * "1")
OTHER = Address("0x" + 40 * "2")
SPENDER = Address("0x" + 40 * "3")


@dataclass(frozen=True)
class FakeToken:
    """Token with one domain. It is the real `Token` for `make_permit`, which only reads it."""

    address: Address = TOKEN
    domain_of: Address = TOKEN
    version: str = "1"
    title: str = "Coin"
    takes_permits: bool = True

    def name(self) -> str:
        return self.title

    def domain_separator(self) -> Hash:
        return hash_from_bytes(compute_separator(self.title, self.version, chain_id=7, token=self.domain_of))

    def nonces(self, owner: Address) -> int:
        return 5

    def check_permit(self, *permit: object) -> None:
        if not self.takes_permits:
            raise ProtocolError("reverted", "the token has no permits")


def make(token: FakeToken) -> SignedPermit | None:
    return make_permit(cast("Token", token), OWNER, spender=SPENDER, value=30, chain_id=7, deadline=99)


@pytest.mark.parametrize("version", ["1", "2"])
def test_permit_is_the_standard_one(version: str) -> None:
    message = {"owner": OWNER.address, "spender": SPENDER, "value": 30, "nonce": 5, "deadline": 99}
    kinds = {"owner": "address", "spender": "address", "value": "uint256", "nonce": "uint256", "deadline": "uint256"}
    signed = Account.sign_typed_data(
        OWNER.key,
        domain_data={"name": "Coin", "version": version, "chainId": 7, "verifyingContract": TOKEN},
        message_types={"Permit": [{"name": name, "type": kind} for name, kind in kinds.items()]},
        message_data=message,
    )
    expected = SignedPermit(
        deadline=99,
        v=signed.v,
        r=hash_from_bytes(signed.r.to_bytes(32, "big")),
        s=hash_from_bytes(signed.s.to_bytes(32, "big")),
    )
    assert make(FakeToken(version=version)) == expected


@pytest.mark.parametrize(
    "token",
    [
        FakeToken(domain_of=OTHER),
        FakeToken(version="3"),
        FakeToken(title="x" * 300),
        FakeToken(takes_permits=False),
    ],
    ids=["the domain of another token", "an unknown version", "a long name", "no permits"],
)
def test_other_tokens_get_no_permit(token: FakeToken) -> None:
    assert make(token) is None
    assert make(replace(FakeToken(), title="Coin")) is not None
