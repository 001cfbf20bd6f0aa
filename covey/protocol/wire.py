"""Bodies of the coordinator's HTTP API, the same for `covey.client` and `coordinator.api`.

Numbers that may pass 2**53 and all hashes travel as in the signed messages; sizes are bounded here, before any use.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from covey.protocol import messages
from covey.protocol.ids import Address, Hash, LeaseId, PoolId, Step, TaskId

HashText = Annotated[Hash, Field(pattern=r"^0x[0-9a-f]{64}$")]
AddressText = Annotated[Address, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
SignatureText = Annotated[str, Field(pattern=r"^0x[0-9a-f]{130}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z_]{1,32}$")]
"""Name of a state or a reason."""
_NUMBER = Field(ge=0, lt=1 << 63)
UInt64 = Annotated[int, _NUMBER]
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


class RegistrationAnswer(Body):
    node: AddressText
    contributor: AddressText


class Heartbeat(Body):
    instance: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Random name of the worker, which a restart keeps: two workers with one node key are told apart by it."""
    free_slots: int = Field(ge=0, le=4096)
    """Leases that the node would hold at once, those in its hands included."""
    cached_version: UInt64 | None = None
    """The newest policy on the node's disk that its engine takes: what it is leased is of this one, which it need not
    download on the lease's clock.  None: whatever is planned."""


class ClaimRequest(Heartbeat):
    """A long poll for a task: who asks is ready."""

    wait_seconds: float = Field(default=5.0, ge=0, le=MAX_WAIT_SECONDS)
    holding: tuple[UInt64, ...] = Field(default=(), max_length=4096)
    """Leases that the node still works on or has given up; any other lease of its own is handed out again."""


class TaskOrder(Body):
    """A lease.  Example: task=7, lease=9, policy_version=3, groups=2."""

    task: Annotated[TaskId, _NUMBER]
    lease: Annotated[LeaseId, _NUMBER]
    policy_version: Annotated[Step, _NUMBER]
    manifest_hash: HashText
    groups: int = Field(ge=1)
    deadline: float = Field(allow_inf_nan=False)
    """Unix seconds."""


class ReturnRequest(Body):
    """A lease that its node cannot serve."""

    task: UInt64
    lease: UInt64


class UploadRequest(Body):
    task: UInt64
    lease: UInt64
    work_key: HashText
    size: int = Field(gt=0)


class UploadGrant(Body):
    url: str | None
    """PUT the bytes here; valid for a short time.  None: the receipt is recorded, and needs no file to be answered
    again."""


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
        return cls(**messages.to_dict(receipt))


class SubmissionRequest(Body):
    receipt: ReceiptBody
    signature: SignatureText


class SubmissionAnswer(Body):
    """The countersignature: the operator's promise to settle the receipt by `latest_epoch`."""

    receipt_hash: HashText
    signed_at: UInt64
    """Unix seconds; the draw comes the pool's `draw_seconds` later."""
    latest_epoch: UInt64
    signature: SignatureText


class WaitRequest(Body):
    wait_seconds: float = Field(default=5.0, ge=0, le=MAX_WAIT_SECONDS)


class TurnRequest(WaitRequest):
    """A long poll of a validator.  A newer one of the same validator ends it."""

    holding: tuple[UInt64, ...] = Field(default=(), max_length=64)
    """Turns that the validator works on; any other one that it has taken is handed out again."""
    free_turns: int = Field(default=1, ge=0, le=64)
    """Turns that the validator would take in addition.  With 0 it waits for orders to reveal only."""


class JudgeOrder(Body):
    """Judge this submission, then commit."""

    kind: Literal["judge"] = "judge"
    judgement: int
    receipt: ReceiptBody
    signature: SignatureText
    url: str
    """GET the file here."""
    manifest_hash: HashText
    full: bool
    """Replay included; otherwise the cheap checks alone."""
    seconds_left: float = Field(ge=0, allow_inf_nan=False)
    """Time for the commitment: no clock of another machine says when it is too late."""


class RevealOrder(Body):
    """All commitments are in: reveal."""

    kind: Literal["reveal"] = "reveal"
    judgement: int


class ValidationOrder(Body):
    order: Annotated[JudgeOrder | RevealOrder, Field(discriminator="kind")]


class CommitRequest(Body):
    judgement: UInt64
    commitment: HashText
    """keccak256(digest of the verdict, salt)."""


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
        return cls(**messages.to_dict(verdict))


class RevealRequest(Body):
    judgement: UInt64
    verdict: VerdictBody
    signature: SignatureText
    salt: HashText
    evidence: str = Field(max_length=MAX_EVIDENCE_BYTES)
    """What `evidence_hash` is the hash of: the bundle (`covey.protocol.evidence`) as JSON."""


class HardCase(Body):
    """Everything that SlashingCourt.propose needs."""

    receipt: ReceiptBody
    signature: SignatureText
    verdicts: tuple[VerdictBody, ...]
    signatures: tuple[SignatureText, ...]


class HardCases(Body):
    cases: tuple[HardCase, ...]


class BatchRequest(WaitRequest):
    step: UInt64


class BatchItem(Body):
    """One accepted submission of a batch."""

    receipt_hash: HashText
    task: TaskId
    node: AddressText
    """Node that the task was leased to: prompts and seeds of its slots follow from it."""
    policy_version: Step
    manifest_hash: HashText
    work_key: HashText
    url: str
    replayed: bool
    """Whether a quorum replayed it.  One validator alone has looked at any other, without the policy."""


class BatchOrder(Body):
    """What the update of `step` consumes, ordered by task."""

    step: Step
    items: tuple[BatchItem, ...]
