"""What the bodies of the coordinator's HTTP API have in common; the client and the server share these classes.

Numbers that may pass 2**53 and all hashes travel as in the signed messages; sizes are bounded here, before any use.
"""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from covey.protocol import eip712, messages
from covey.protocol.ids import Address, Hash, LeaseId, PoolId, Step, TaskId

HashText = Annotated[Hash, Field(pattern=r"^0x[0-9a-f]{64}$")]
AddressText = Annotated[Address, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
SignatureText = Annotated[str, Field(pattern=r"^0x[0-9a-f]{130}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z_]{1,32}$")]
"""Name of a state or a reason."""
UINT64_FIELD = Field(ge=0, lt=1 << 63)
UInt64 = Annotated[int, UINT64_FIELD]
MAX_WAIT_SECONDS = 20.0
MAX_EVIDENCE_BYTES = 64 << 10
MAX_EPOCH_BYTES = 32 << 20
"""Largest file of an epoch: its leaves and rewards as JSON."""


class Body(BaseModel):
    """Base of all bodies: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorBody(Body):
    """Every error.  `code` is stable; docs/reference/errors.md says what to do about each."""

    code: str
    message: str
    time: UInt64
    """The coordinator's clock, Unix seconds: a client that is off corrects itself by it."""


class ReceiptBody(Body):
    """A Receipt as JSON."""

    pool: PoolId
    task: TaskId
    lease: LeaseId
    node: AddressText
    contributor: AddressText
    policy_version: Step
    work_key: HashText
    groups: Annotated[int, Field(ge=0, lt=1 << 32)]
    units: UInt64
    deadline: UInt64

    def to_message(self) -> messages.Receipt:
        return messages.Receipt(**self.model_dump())

    @classmethod
    def of(cls, receipt: messages.Receipt) -> Self:
        return cls(**eip712.to_dict(receipt))


class WaitRequest(Body):
    wait_seconds: float = Field(default=5.0, ge=0, le=MAX_WAIT_SECONDS)


class VerdictBody(Body):
    """A Verdict as JSON."""

    pool: PoolId
    receipt_hash: HashText
    work_key: HashText
    validator: AddressText
    outcome: int = Field(ge=1, le=3)
    reason: int = Field(ge=0, le=255)
    severity: int = Field(ge=0, le=2)
    units: UInt64
    evidence_hash: HashText
    deadline: UInt64

    def to_message(self) -> messages.Verdict:
        return messages.Verdict(**self.model_dump())

    @classmethod
    def of(cls, verdict: messages.Verdict) -> Self:
        return cls(**eip712.to_dict(verdict))
