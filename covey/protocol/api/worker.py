"""Bodies of the routes that workers call: registration, leases, uploads and submissions."""

from typing import Annotated

from pydantic import ConfigDict, Field

from covey.protocol.api.common import (
    MAX_WAIT_SECONDS,
    UINT64_FIELD,
    AddressText,
    Body,
    ContractText,
    HashText,
    ReceiptBody,
    SignatureText,
    UInt64,
)
from covey.protocol.ids import LeaseId, Step, TaskId

MAX_INLINE_BYTES = 64 << 10
"""Maximum size in bytes of a file that comes with its receipt. A larger one is uploaded first."""


class RegistrationRequest(Body):
    """Request to register the node that signs it."""

    contract: ContractText = ""
    """Digest of the execution contract under which the node works. Empty: it works in the calibrated lane."""


class RegistrationResponse(Body):
    """Response to a registration: the node that was registered, and its contributor."""

    node: AddressText
    contributor: AddressText


class Heartbeat(Body):
    """State that a worker reports at regular intervals."""

    instance: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Random id of the worker, which stays the same after a restart. It distinguishes workers that share a node
    key.
    """
    free_slots: int = Field(ge=0, le=4096)
    """Maximum number of leases that the node can hold at once, including those that it already holds."""
    cached_version: UInt64 | None = None
    """Newest policy version on the node's disk that its engine can load. Tasks are leased for this policy, so that
    the node need not download another policy while the lease runs. None: tasks are leased for any planned
    policy.
    """


class ClaimRequest(Heartbeat):
    """Long-poll request for a task. It is also a heartbeat, and reports that the worker is ready."""

    wait_seconds: float = Field(default=5.0, ge=0, le=MAX_WAIT_SECONDS)
    holding: tuple[UInt64, ...] = Field(default=(), max_length=4096)
    """Ids of the leases that the node is working on or has given up. Any other lease of the node is sent to it
    again. A lease that the node has not received yet is sent even if it is named here.
    """


class TaskOrder(Body):
    """A task that is leased to a node. Example: task=7, lease=9, policy_version=3, groups=2."""

    task: Annotated[TaskId, UINT64_FIELD]
    lease: Annotated[LeaseId, UINT64_FIELD]
    policy_version: Annotated[Step, UINT64_FIELD]
    record_hash: HashText
    groups: int = Field(ge=1)
    deadline: float = Field(allow_inf_nan=False)
    """Time in Unix seconds at which the lease expires."""


class ReturnRequest(Body):
    """Request to end a lease because the node cannot complete the task."""

    task: UInt64
    lease: UInt64


class UploadRequest(Body):
    """Request for a URL to which the file of a lease can be uploaded."""

    task: UInt64
    lease: UInt64
    work_key: HashText
    size: int = Field(gt=0)
    """Size of the file in bytes."""


class UploadGrant(Body):
    """Response to an UploadRequest."""

    url: str | None
    """URL for an HTTP PUT of the file, valid for a short time. None: the receipt is already recorded and can be
    submitted again without the file.
    """


class SubmissionRequest(Body):
    """Request to submit a signed receipt with its file, or one whose file was uploaded."""

    model_config = ConfigDict(frozen=True, extra="forbid", val_json_bytes="base64", ser_json_bytes="base64")

    receipt: ReceiptBody
    signature: SignatureText
    file: Annotated[bytes, Field(max_length=MAX_INLINE_BYTES)] | None = None
    """Content of the file, in JSON as base64 with the URL-safe alphabet (RFC 4648, section 5). None: it was uploaded,
    or the receipt is already recorded.
    """


class SubmissionResponse(Body):
    """Response to a submission: a countersignature, which promises an epoch with the receipt by `due_by`."""

    receipt_hash: HashText
    signed_at: UInt64
    """Time of the countersignature in Unix seconds. The draw takes place the pool's `draw_seconds` later."""
    due_by: UInt64
    """Last epoch that may include the receipt."""
    signature: SignatureText
