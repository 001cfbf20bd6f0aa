"""The bloom filter `logsBloom` of a block's header: which addresses and topics the block's logs may have.

Each value sets three of 2048 bits. A filter without one of an address's bits proves that the address has no logs there.
"""

from collections.abc import Iterable

from eth_utils.crypto import keccak

from covey.chain.node_answers import Log
from covey.protocol.ids import Address

BLOOM_BITS = 2048
FULL_BITS = BLOOM_BITS // 2
"""Number of set bits from which a filter counts as full. It then contains an absent address with a chance of 1/8."""


def may_contain(bloom: int, addresses: Iterable[Address]) -> bool:
    """Return whether a block may have logs of one of the addresses. False is certain."""
    return any((mask := _compute_mask(bytes.fromhex(address[2:]))) & bloom == mask for address in addresses)


def is_full(bloom: int) -> bool:
    return bloom.bit_count() >= FULL_BITS


def compute_bloom(logs: Iterable[Log]) -> int:
    """Return the filter of a block that has exactly these logs."""
    bloom = 0
    for log in logs:
        for text in (log.address, *log.topics):
            bloom |= _compute_mask(bytes.fromhex(text[2:]))
    return bloom


def _compute_mask(value: bytes) -> int:
    digest = keccak(value)
    return sum({1 << (int.from_bytes(digest[i : i + 2]) % BLOOM_BITS) for i in (0, 2, 4)})
