"""Bodies of the routes that the trainer calls: the batch of a step."""

from covey.protocol.api.common import AddressText, Body, HashText, UInt64, WaitRequest
from covey.protocol.ids import Step, TaskId


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
