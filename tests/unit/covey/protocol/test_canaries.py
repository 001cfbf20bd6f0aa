import hashlib

import pytest
from eth_utils.crypto import keccak

from covey.protocol.canaries import CanaryKind, compute_canary_commitment, compute_salt
from covey.protocol.verdict import Decision

pytestmark = pytest.mark.unit
RECEIPT, SALT, SECRET = "0x" + "11" * 32, "0x" + "22" * 32, bytes(range(32))


def hmac_by_hand(secret: bytes, message: bytes) -> bytes:
    """HMAC as in RFC 2104, for a secret that is shorter than SHA-256's block of 64 bytes."""
    block = secret.ljust(64, b"\0")
    inner, outer = bytes(b ^ 0x36 for b in block), bytes(b ^ 0x5C for b in block)
    return hashlib.sha256(outer + hashlib.sha256(inner + message).digest()).digest()


@pytest.mark.parametrize("kind", CanaryKind)
def test_commitment__by_hand__three_words_hashed(kind: CanaryKind):
    words = b"\x11" * 32 + b"\x22" * 32 + b"\0" * 31 + bytes([kind])
    assert compute_canary_commitment(RECEIPT, SALT, kind) == "0x" + keccak(words).hex()


def test_commitment__another_receipt_salt_or_kind__differs():
    other = "0x" + "33" * 32
    values = [(RECEIPT, SALT, kind) for kind in CanaryKind] + [
        (other, SALT, 0),
        (RECEIPT, other, 0),
        (SALT, RECEIPT, 0),
    ]
    assert len({compute_canary_commitment(*value) for value in values}) == 6


def test_salt__by_hand__depends_only_on_secret_and_receipt():
    assert compute_salt(SECRET, RECEIPT) == "0x" + hmac_by_hand(SECRET, b"covey-canary-1\n" + RECEIPT.encode()).hex()
    assert compute_salt(SECRET, SALT) != compute_salt(SECRET, RECEIPT) != compute_salt(SECRET[::-1], RECEIPT)


def test_kind__numbers_and_correct_verdicts__never_change():
    assert {(kind.name, int(kind), kind.expected) for kind in CanaryKind} == {
        ("ORDINARY", 0, None),
        ("REJECT", 1, Decision.REJECT),
        ("ACCEPT", 2, Decision.ACCEPT),
    }
