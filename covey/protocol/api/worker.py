"""Bodies of the routes that workers call: registration, leases, uploads and submissions."""

from typing import Annotated

from pydantic import Field

from covey.protocol.api.common import (
    MAX_WAIT_SECONDS,
    UINT64_FIELD,
    AddressText,
    Body,
    HashText,
    ReceiptBody,
    SignatureText,
    UInt64,
)
from covey.protocol.ids import LeaseId, Step, TaskId


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

    task: Annotated[TaskId, UINT64_FIELD]
    lease: Annotated[LeaseId, UINT64_FIELD]
    policy_version: Annotated[Step, UINT64_FIELD]
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
