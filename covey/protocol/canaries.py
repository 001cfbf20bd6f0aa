"""Canaries: work whose right verdict the operator knows, and the commitment that every submission gets at intake.

Called by the coordinator, and by anyone who checks a revealed kind.  All commitments look alike: only salt and kind,
shown when the submission is decided, say which was a canary.
"""

import hashlib
import hmac
from enum import IntEnum

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from covey.protocol.ids import Hash, hash_from_bytes, hash_to_bytes
from covey.protocol.verdict import Decision


class CanaryKind(IntEnum):
    """What a commitment hides.  Example: CanaryKind.REJECT.expected -> Decision.REJECT."""

    ORDINARY = 0
    REJECT = 1
    """Known to be bad: a validator that replays it rejects it."""
    ACCEPT = 2
    """Known to be good."""

    @property
    def expected(self) -> Decision | None:
        """The right verdict; None of ordinary work, whose verdict nobody knows beforehand."""
        return {CanaryKind.REJECT: Decision.REJECT, CanaryKind.ACCEPT: Decision.ACCEPT}.get(self)


def compute_salt(secret: bytes, receipt_hash: Hash) -> Hash:
    """HMAC-SHA256(secret, "covey-canary-1", newline, receipt hash): what is shown of one tells nothing of another."""
    return hash_from_bytes(hmac.new(secret, f"covey-canary-1\n{receipt_hash}".encode(), hashlib.sha256).digest())


def compute_canary_commitment(receipt_hash: Hash, salt: Hash, kind: CanaryKind) -> Hash:
    """keccak256(abi.encode(bytes32 receiptHash, bytes32 salt, uint8 kind))."""
    words = [hash_to_bytes(receipt_hash), hash_to_bytes(salt), int(kind)]
    return hash_from_bytes(keccak(encode(["bytes32", "bytes32", "uint8"], words)))
