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
    """A node that has been registered, and its contributor."""

    node: AddressText
    contributor: AddressText


class Heartbeat(Body):
    """State of a worker, which it reports regularly."""

    instance: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Random name of the worker, which a restart keeps. It distinguishes two workers with the same node key."""
    free_slots: int = Field(ge=0, le=4096)
    """Largest number of leases that the node would hold at once, including those that it holds now."""
    cached_version: UInt64 | None = None
    """Newest policy on the node's disk that its engine can load. Tasks are leased for this policy, so that the node
    need not download another one while a lease runs. None: tasks are leased for any planned policy."""


class ClaimRequest(Heartbeat):
    """A long poll for a task, which also reports that the worker is ready."""

    wait_seconds: float = Field(default=5.0, ge=0, le=MAX_WAIT_SECONDS)
    holding: tuple[UInt64, ...] = Field(default=(), max_length=4096)
    """Leases that the node still works on or has given up. Any other lease of the node is handed out again."""


class TaskOrder(Body):
    """A lease. Example: task=7, lease=9, policy_version=3, groups=2."""

    task: Annotated[TaskId, UINT64_FIELD]
    lease: Annotated[LeaseId, UINT64_FIELD]
    policy_version: Annotated[Step, UINT64_FIELD]
    manifest_hash: HashText
    groups: int = Field(ge=1)
    deadline: float = Field(allow_inf_nan=False)
    """Time in Unix seconds at which the lease expires."""


class ReturnRequest(Body):
    """A lease that its node returns because it cannot serve it."""

    task: UInt64
    lease: UInt64


class UploadRequest(Body):
    """Request for a link to upload the file of a lease."""

    task: UInt64
    lease: UInt64
    work_key: HashText
    size: int = Field(gt=0)
    """Size of the file in bytes."""


class UploadGrant(Body):
    """Answer to an UploadRequest."""

    url: str | None
    """URL to which the bytes are put, valid for a short time. None: the receipt is already recorded, and submitting it
    again does not need the file."""


class SubmissionRequest(Body):
    """A signed receipt, whose file has been uploaded."""

    receipt: ReceiptBody
    signature: SignatureText


class SubmissionAnswer(Body):
    """The countersignature: the operator's promise to settle the receipt by `latest_epoch`."""

    receipt_hash: HashText
    signed_at: UInt64
    """Time of signing in Unix seconds. The draw takes place `draw_seconds` of the pool later."""
    latest_epoch: UInt64
    """Last epoch that may include the receipt."""
    signature: SignatureText
