"""Canaries: submissions by the operator whose correct verdict is known, and commitments that hide them.

Every submission gets a commitment when it arrives. All commitments look alike. Only the salt and the kind
reveal a canary, and they are published when the submission is decided.
"""

import hashlib
import hmac
from enum import IntEnum
from typing import Literal

from eth_hash.auto import keccak
from pydantic import BaseModel, ConfigDict

from covey.errors import ProtocolError
from covey.protocol.api.common import SignatureText
from covey.protocol.eip712 import Domain, require_signer
from covey.protocol.ids import Address, Hash, hash_from_bytes, hash_to_bytes
from covey.protocol.messages import CanaryConsent
from covey.protocol.verdict import Decision


class CanaryKind(IntEnum):
    """Kind of a submission, which its commitment hides. Example: CanaryKind.REJECT.expected -> Decision.REJECT."""

    ORDINARY = 0
    """A worker's submission. Its correct verdict is not known in advance."""
    REJECT = 1
    """A canary that is known to be bad. A validator that replays it must reject it."""
    ACCEPT = 2
    """A canary that is known to be good."""

    @property
    def expected(self) -> Decision | None:
        """Correct decision for a canary. None for an ordinary submission, for which it is not known in advance."""
        return {CanaryKind.REJECT: Decision.REJECT, CanaryKind.ACCEPT: Decision.ACCEPT}.get(self)


class Canary(BaseModel):
    """What is known of a node's work. Example: Canary(verdict="reject", consent="0x...")."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdict: Literal["accept", "reject"]
    """Verdict that a validator should give after a replay."""
    consent: SignatureText
    """Signature of the node's contributor that this work is void (`covey.protocol.messages.CanaryConsent`)."""

    @property
    def kind(self) -> CanaryKind:
        return CanaryKind[self.verdict.upper()]


def require_consent(consent: CanaryConsent, signature: str, *, domain: Domain, contributor: Address) -> None:
    """Raise ProtocolError("no_consent") unless the contributor of a node has signed that its work is a canary.

    `domain` is that of receipts. Otherwise an operator could call any work a canary, and not pay for it.
    """
    try:
        require_signer(consent, domain, signature, contributor)
    except ProtocolError as error:
        raise ProtocolError(
            "no_consent", f"{contributor} has not signed that work of {consent.node} is a canary", status=403
        ) from error


def compute_salt(secret: bytes, receipt_hash: Hash) -> Hash:
    """Return HMAC-SHA256(secret, "covey-canary-1", newline, receipt hash).

    A published salt reveals nothing about any other salt.
    """
    return hash_from_bytes(hmac.new(secret, f"covey-canary-1\n{receipt_hash}".encode(), hashlib.sha256).digest())


def compute_canary_commitment(receipt_hash: Hash, salt: Hash, kind: CanaryKind) -> Hash:
    """Return keccak256(abi.encode(bytes32 receiptHash, bytes32 salt, uint8 kind))."""
    return hash_from_bytes(keccak(hash_to_bytes(receipt_hash) + hash_to_bytes(salt) + int(kind).to_bytes(32, "big")))
