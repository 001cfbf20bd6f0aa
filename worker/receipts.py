"""The receipt that a worker signs, and the countersignature that it accepts in return."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol import eip712
from covey.protocol.api.worker import SubmissionResponse, TaskOrder
from covey.protocol.canonical import sha256
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, PoolId
from covey.protocol.messages import Countersignature, Receipt
from covey.protocol.params import PoolParams
from covey.protocol.promises import compute_longest_promise
from covey.protocol.submission_file.rows import Rollout, count_units


def build_receipt(
    task: TaskOrder,
    params: PoolParams,
    *,
    pool: PoolId,
    node: Address,
    contributor: Address,
    rollouts: Sequence[Rollout],
    file: bytes,
    now: float,
) -> Receipt:
    """Build the receipt to sign for a finished file."""
    return Receipt(
        pool=pool,
        task=task.task,
        lease=task.lease,
        node=node,
        contributor=contributor,
        policy_version=task.policy_version,
        work_key=sha256(file),
        groups=task.groups,
        units=count_units(rollouts),
        deadline=int(now + params.receipt_seconds),
    )


FINAL_CODES = frozenset(
    {
        "bad_countersignature",
        "bad_message",
        "bad_receipt",
        "duplicate_submission",
        "equivocation",
        "lease_expired",
        "not_your_task",
        "oversized",
        "stale",
        "suspended",
        "unknown_node",
        "unknown_task",
    }
)
"""Error codes after which a receipt is worthless.

After any other refusal, such as an expired link, it is sent again.
"""
MAX_AHEAD_SECONDS = 3600
"""Maximum number of seconds by which a promise can be dated ahead of this worker's clock.

A later date would postpone the draw, and with it the pay. Honest clocks differ by less.
"""


@contextmanager
def explain_other_instance() -> Iterator[None]:
    """Convert an error: raise OperatorError("another_instance") if another worker with this node's key is active."""
    try:
        yield
    except ProtocolError as error:
        if error.code != "another_instance":
            raise
        fix = "Stop the other worker, or create a separate key for this machine with covey join"
        raise OperatorError(error.code, error.message, fix=fix) from error


def require_final(error: ProtocolError) -> None:
    """Return if a refusal is final. Raise TransientError if the same receipt may still be accepted."""
    if error.code not in FINAL_CODES:
        raise TransientError(error.code, error.message) from error


def require_promise(
    answer: SubmissionResponse,
    receipt: Receipt,
    *,
    domain: Domain,
    signer: Address,
    first_time: int,
    now: float,
    draw_seconds: int,
    epoch_length: int,
) -> Countersignature:
    """Return the operator's promise for `receipt`. `signer` is the pool's signer at the promise's date.

    `first_time` is the time of the newest block when the receipt was signed, and `now` is this worker's time when the
    response arrived, both in Unix seconds. `epoch_length` is the pool's term.

    Raises ProtocolError("bad_countersignature") if the promise is for a different receipt, not signed by the signer,
    or has an unfair date or due time. If its date were `draw_seconds` before `first_time`, the coordinator would know
    the draw when it signs. A date more than MAX_AHEAD_SECONDS after `now` would postpone the draw, and with it the pay.
    The ledger does not enforce a promise that runs longer than `compute_longest_promise`.
    """
    promise = Countersignature(receipt_hash=answer.receipt_hash, signed_at=answer.signed_at, due_by=answer.due_by)
    if promise.receipt_hash != eip712.compute_struct_hash(receipt):
        raise ProtocolError("bad_countersignature", "the countersignature is for a different receipt")
    if eip712.recover_signer(promise, domain, answer.signature) != signer:
        raise ProtocolError("bad_countersignature", "the countersignature is not signed by the pool's signer")
    earliest, latest = first_time - draw_seconds, int(now) + MAX_AHEAD_SECONDS
    if not earliest < promise.signed_at <= latest:
        message = (
            f"the countersignature has the date {promise.signed_at}, but it must be after {earliest} "
            f"and at most {latest}"
        )
        raise ProtocolError("bad_countersignature", message)
    farthest = promise.signed_at + compute_longest_promise(epoch_length)
    if not promise.signed_at <= promise.due_by <= farthest:
        message = (
            f"the countersignature promises an epoch by {promise.due_by}, but it must be from {promise.signed_at} "
            f"to {farthest}"
        )
        raise ProtocolError("bad_countersignature", message)
    return promise
