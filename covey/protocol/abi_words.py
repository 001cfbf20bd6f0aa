"""ABI encoding of values that take one word each: unsigned numbers, addresses and hashes.

Messages and leaves consist of such values only. eth_abi encodes anything, and takes twenty times as long.
"""

from functools import lru_cache

from eth_utils.address import is_checksum_address

from covey.protocol.ids import Hash, hash_to_bytes, is_hash


def encode_word(kind: str, value: object) -> bytes | None:
    """Return a value as a word of 32 bytes. None if it does not fit its type.

    `kind` is "uint" with a number of bits, "address" or "bytes32". Addresses must be checksummed.
    """
    if kind.startswith("uint"):
        is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << int(kind[4:])
        return value.to_bytes(32, "big") if is_number and isinstance(value, int) else None
    if not isinstance(value, str):
        return None
    if kind == "address":
        return encode_address(value) if _is_checksummed(value) else None
    return hash_to_bytes(Hash(value)) if is_hash(value) else None


def encode_address(address: str) -> bytes:
    """Return an address as a word."""
    return bytes(12) + bytes.fromhex(address[2:])


_is_checksummed = lru_cache(maxsize=1 << 16)(is_checksum_address)
"""Whether an address is checksummed. Those of nodes and contributors come again and again."""
