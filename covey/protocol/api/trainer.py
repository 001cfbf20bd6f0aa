"""Bodies of the routes that the trainer calls: the batch of a step."""

from covey.protocol.api.common import AddressText, Body, HashText, UInt64, WaitRequest
from covey.protocol.ids import Step, TaskId


class BatchRequest(WaitRequest):
    """A long poll for the batch of a step."""

    step: UInt64


class BatchItem(Body):
    """One accepted submission of a batch."""

    receipt_hash: HashText
    task: TaskId
    node: AddressText
    """Node that the task was leased to. The prompts and seeds of its slots follow from it."""
    policy_version: Step
    manifest_hash: HashText
    work_key: HashText
    url: str
    """URL from which the file can be downloaded."""
    replayed: bool
    """Whether a quorum of validators replayed it. Otherwise only the checks that do not need the policy were made."""


class BatchOrder(Body):
    """The submissions that the update of `step` consumes, ordered by task."""

    step: Step
    items: tuple[BatchItem, ...]
