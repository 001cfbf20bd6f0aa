"""Types that the bodies of the coordinator's HTTP API share. Client and server use the same classes.

All hashes, and numbers that may exceed 2**53, have the same form as in the signed messages. Fields have
maximum sizes, so that a body is checked before it is used.
"""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from covey.protocol import eip712, messages
from covey.protocol.ids import Address, Hash, LeaseId, PoolId, Step, TaskId

HashText = Annotated[Hash, Field(pattern=r"^0x[0-9a-f]{64}$")]
AddressText = Annotated[Address, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
ContractText = Annotated[str, Field(pattern=r"^(0x[0-9a-f]{64})?$")]
"""Digest of an execution contract. Empty: the calibrated lane."""
SignatureText = Annotated[str, Field(pattern=r"^0x[0-9a-f]{130}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z_]{1,32}$")]
"""Name of a state or a reason."""
UINT64_FIELD = Field(ge=0, lt=1 << 63)
UInt64 = Annotated[int, UINT64_FIELD]
MAX_WAIT_SECONDS = 20.0
"""Maximum duration of a long poll, in seconds."""
MAX_EVIDENCE_BYTES = 64 << 10
"""Maximum size of an evidence bundle, in bytes."""
MAX_EPOCH_BYTES = 32 << 20
"""Maximum size in bytes of an epoch's file, which contains its leaves and rewards as JSON."""


class Body(BaseModel):
    """Base class of all bodies. Bodies are frozen and reject unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorBody(Body):
    """Body of every error response. `code` is stable; docs/reference/errors.md lists the remedy for each code."""

    code: str
    message: str
    time: UInt64
    """Time of the coordinator's clock in Unix seconds. A client uses it to correct its own clock."""


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
        """Return the receipt as the EIP-712 message that the node signs."""
        return messages.Receipt(**self.model_dump())

    @classmethod
    def of(cls, receipt: messages.Receipt) -> Self:
        """Return the JSON body of a receipt."""
        return cls(**eip712.to_dict(receipt))


class WaitRequest(Body):
    """Base class of long-poll requests. The response comes after at most `wait_seconds`."""

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
        """Return the verdict as the EIP-712 message that the validator signs."""
        return messages.Verdict(**self.model_dump())

    @classmethod
    def of(cls, verdict: messages.Verdict) -> Self:
        """Return the JSON body of a verdict."""
        return cls(**eip712.to_dict(verdict))
