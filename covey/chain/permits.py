"""Permits of EIP-2612: an owner's signature that lets a contract take tokens, so that no approval must be mined first.

A token's domain is recomputed from its name and address. Otherwise a token could report the domain of another one, and
so obtain a permit for that token.
"""

from dataclasses import dataclass
from typing import ClassVar

from eth_utils.crypto import keccak

from covey.chain.structs import SignedPermit
from covey.chain.token import Token
from covey.errors import ProtocolError, TransientError
from covey.protocol.abi_words import encode_address
from covey.protocol.eip712 import Signer, compute_struct_hash
from covey.protocol.ids import Address, Hash, hash_from_bytes, hash_to_bytes

VERSIONS = ("1", "2")
"""Versions that the domains of tokens have. EIP-2612 does not require a token to report its version."""
MAX_NAME = 256
"""Maximum length of a token's name in bytes."""
_KIND = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """Message of EIP-2612 that the owner signs. Its name and fields are those of the standard."""

    TYPES: ClassVar[dict[str, str]] = {
        "owner": "address",
        "spender": "address",
        "value": "uint256",
        "nonce": "uint256",
        "deadline": "uint256",
    }
    owner: Address
    spender: Address
    value: int
    nonce: int
    deadline: int
    """Unix time in seconds until which the permit can be used."""


def compute_separator(name: str, version: str, *, chain_id: int, token: Address) -> bytes:
    """Return the domain separator of a token."""
    words = (keccak(text=_KIND), keccak(text=name), keccak(text=version), chain_id.to_bytes(32, "big"))
    return keccak(b"".join(words) + encode_address(token))


def sign_permit(permit: Permit, separator: bytes, owner: Signer) -> SignedPermit:
    """Sign a permit for the token with this domain separator."""
    signature = owner.sign_digest(keccak(b"\x19\x01" + separator + hash_to_bytes(compute_struct_hash(permit))))
    r, s = hash_from_bytes(signature[:32]), hash_from_bytes(signature[32:64])
    return SignedPermit(deadline=permit.deadline, v=signature[64], r=r, s=s)


def make_permit(
    token: Token, owner: Signer, *, spender: Address, value: int, chain_id: int, deadline: int
) -> SignedPermit | None:
    """Sign a permit that the token accepts. None if the token has no permits of EIP-2612.

    The token is asked whether it accepts the permit, because some tokens have permits of another form.
    """
    try:
        name, reported = token.name(), token.domain_separator()
        nonce = token.nonces(owner.address)
        separator = _find_separator(name, reported, chain_id=chain_id, token=token.address)
        if separator is None:
            return None
        permit = Permit(owner=owner.address, spender=spender, value=value, nonce=nonce, deadline=deadline)
        signed = sign_permit(permit, separator, owner)
        token.check_permit(permit.owner, spender, value, signed.deadline, signed.v, signed.r, signed.s)
    except (ProtocolError, TransientError) as error:
        if error.code not in ("reverted", "no_contract"):
            raise
        return None
    return signed


def _find_separator(name: str, reported: Hash, *, chain_id: int, token: Address) -> bytes | None:
    """Return the reported domain separator if it is that of this token with one of VERSIONS."""
    if len(name) > MAX_NAME:
        return None
    separators = (compute_separator(name, version, chain_id=chain_id, token=token) for version in VERSIONS)
    return next((separator for separator in separators if separator == hash_to_bytes(reported)), None)
