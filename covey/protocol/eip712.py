"""EIP-712 signatures of typed messages: encoding, digests, signing, and recovery of the signer.

`sign` and `recover_signer` accept every message of `covey.protocol.messages`. The domain consists of the name
"Covey", DOMAIN_VERSION, the chain, and the contract that verifies the message.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, Protocol

from eth_hash.auto import keccak

from covey.errors import ProtocolError
from covey.protocol.abi_words import encode_address, encode_word
from covey.protocol.ids import Address, Hash, hash_from_bytes
from covey.protocol.secp256k1 import recover_address

DOMAIN_VERSION = "3"
"""Version of the contracts and of the messages that they verify. It must be raised when a message, a leaf or a
contract function changes. Contracts of any other version are rejected
(`covey.chain.json_rpc.require_version`).
"""
_SIGNATURE = re.compile("0x[0-9a-f]{130}")
_HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
"""Half the order of secp256k1: the maximum s of a signature in low-s form (EIP-2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """EIP-712 domain of a signature: the chain and the verifying contract."""

    chain_id: int
    contract: Address


class Message(Protocol):
    """A message that can be signed: a dataclass with TYPES, which maps each field to its Solidity type."""

    TYPES: ClassVar[dict[str, str]]
    __dataclass_fields__: ClassVar[dict[str, Any]]


class Signer(Protocol):
    """A key that can sign, for example a `covey.chain.wallet.Wallet`."""

    @property
    def address(self) -> Address: ...
    def sign_digest(self, digest: bytes) -> bytes: ...


def to_dict(message: Message) -> dict[str, Any]:
    """Return the message's fields by name, with values that JSON can represent."""
    return {name: getattr(message, name) for name in message.TYPES}


def compute_digest(message: Message, domain: Domain) -> Hash:
    """Return the digest that is signed: keccak256(0x19 0x01, domain separator, struct hash).

    Raises ProtocolError("bad_message") if a value does not fit its type.
    """
    return hash_from_bytes(_compute_digest(message, domain))


def compute_struct_hash(message: Message) -> Hash:
    """Return hashStruct(message), which is independent of the domain. For a Receipt it is the `receipt_hash`."""
    return hash_from_bytes(_hash_struct(message))


def sign(message: Message, domain: Domain, signer: Signer) -> str:
    """Return the 65-byte signature of a message, in hexadecimal with 0x."""
    return "0x" + signer.sign_digest(_compute_digest(message, domain)).hex()


def recover_signer(message: Message, domain: Domain, signature: str) -> Address:
    """Return the address that signed a message.

    Raises ProtocolError("bad_signature") if `signature` is malformed or has a form that the contracts reject.
    """
    if not _SIGNATURE.fullmatch(signature):
        raise ProtocolError(
            "bad_signature", "the signature does not consist of 0x and 130 lower-case hexadecimal digits", status=401
        )
    # The contracts accept one form only (EIP-2). Work signed in another form could be paid but never slashed.
    if int(signature[66:130], 16) > _HALF_ORDER or signature[130:] not in ("1b", "1c"):
        reason = "the signature has a form that the contracts refuse: s is high, or v is neither 27 nor 28"
        raise ProtocolError("bad_signature", reason, status=401)
    try:
        return recover_address(_compute_digest(message, domain), bytes.fromhex(signature[2:]))
    except ValueError as error:
        raise ProtocolError("bad_signature", "no signer can be recovered from the signature", status=401) from error


def require_signer(message: Message, domain: Domain, signature: str, expected: Address) -> None:
    """Raise ProtocolError("bad_signature") unless `expected` signed `message`."""
    if recover_signer(message, domain, signature) != expected:
        raise ProtocolError("bad_signature", f"the message was not signed by {expected}", status=401)


def _compute_digest(message: Message, domain: Domain) -> bytes:
    return keccak(b"\x19\x01" + _compute_separator(domain) + _hash_struct(message))


@lru_cache(maxsize=64)
def _compute_separator(domain: Domain) -> bytes:
    kind = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
    values = (keccak(kind.encode()), keccak(b"Covey"), keccak(DOMAIN_VERSION.encode()))
    return keccak(b"".join(values) + domain.chain_id.to_bytes(32, "big") + encode_address(domain.contract))


def _hash_struct(message: Message) -> bytes:
    """Return hashStruct(message). All fields are of one word each: numbers, addresses and hashes."""
    words = [_compute_type_hash(type(message))]
    for name, kind in message.TYPES.items():
        word = encode_word(kind, getattr(message, name))
        if word is None:
            raise ProtocolError("bad_message", f"the field {name} of {type(message).__name__} is not a valid {kind}")
        words.append(word)
    return keccak(b"".join(words))


@cache
def _compute_type_hash(kind: type[Message]) -> bytes:
    fields = ",".join(f"{solidity} {_to_camel(name)}" for name, solidity in kind.TYPES.items())
    return keccak(f"{kind.__name__}({fields})".encode())


def _to_camel(name: str) -> str:
    """Convert a name to camel case as in Solidity, for example "policy_version" to "policyVersion"."""
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
