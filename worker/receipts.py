"""The receipt that a worker signs, and the countersignature that it accepts in return."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol import eip712
from covey.protocol.api.worker import SubmissionResponse, TaskOrder
from covey.protocol.canonical import sha256
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, PoolId
from covey.protocol.messages import Countersignature, Receipt
from covey.protocol.params import PoolParams
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainMoment:
    """The chain at a moment, as a worker saw it. Example: ChainMoment(time=1_700_000_000, epochs=3)."""

    time: int
    """Time of the newest block or of the worker's clock, in Unix seconds."""
    epochs: int
    """Number of epochs in the ledger."""


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
MAX_PROMISED_EPOCHS = 128
"""Maximum number of epochs between the ledger's newest epoch and the epoch that the operator promises.

The ledger keeps 256 epochs, and a challenge needs some of them.
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
    operator: Address,
    first: ChainMoment,
    last: ChainMoment,
    draw_seconds: int,
) -> Countersignature:
    """Return the operator's promise for `receipt`.

    `first` is the chain when the receipt was signed. `last` is the time on this worker's clock, with the ledger's
    epochs, when the response arrived.

    Raises ProtocolError("bad_countersignature") if the promise is for a different receipt, not signed by the operator,
    or has an unfair date or epoch. If its date were `draw_seconds` before `first`, the coordinator would know the draw
    when it signs. A date more than MAX_AHEAD_SECONDS after `last` would postpone the draw, and with it the pay.
    """
    promise = Countersignature(
        receipt_hash=answer.receipt_hash, signed_at=answer.signed_at, latest_epoch=answer.latest_epoch
    )
    if promise.receipt_hash != eip712.compute_struct_hash(receipt):
        raise ProtocolError("bad_countersignature", "the countersignature is for a different receipt")
    if eip712.recover_signer(promise, domain, answer.signature) != operator:
        raise ProtocolError("bad_countersignature", "the countersignature is not signed by the pool's operator")
    earliest, latest = first.time - draw_seconds, last.time + MAX_AHEAD_SECONDS
    if not earliest < promise.signed_at <= latest:
        message = (
            f"the countersignature has the date {promise.signed_at}, but it must be after {earliest} "
            f"and at most {latest}"
        )
        raise ProtocolError("bad_countersignature", message)
    farthest = last.epochs + MAX_PROMISED_EPOCHS
    if not first.epochs <= promise.latest_epoch <= farthest:
        message = (
            f"the countersignature promises epoch {promise.latest_epoch}, but {first.epochs} to {farthest} are allowed"
        )
        raise ProtocolError("bad_countersignature", message)
    return promise
