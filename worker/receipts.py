"""The receipt that a worker signs, and the countersignature that it accepts for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol import eip712
from covey.protocol.api.worker import SubmissionAnswer, TaskOrder
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
    """The claim to be signed over a finished file."""
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
    """What a worker saw of the chain at one time.  Example: ChainMoment(time=1_700_000_000, epochs=3)."""

    time: int
    """Time of the newest block, Unix seconds."""
    epochs: int
    """Epochs that the ledger had."""


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
"""After these a receipt is worth nothing; after any other refusal (a proxy's, an expired link) it is sent again."""
MOST_PROMISED_EPOCHS = 128
"""A fair promise is at most so many epochs away: the ledger keeps 256, and a challenge needs some of them."""
MOST_AHEAD_SECONDS = 3600
"""A promise that is dated further ahead would put its draw, and the pay, off.  Clocks may differ by less."""


@contextmanager
def explain_other_instance() -> Iterator[None]:
    """Raise OperatorError("another_instance") where the coordinator hears another worker with this node's key."""
    try:
        yield
    except ProtocolError as error:
        if error.code != "another_instance":
            raise
        fix = "Or give this machine a key of its own with covey join"
        raise OperatorError(error.code, error.message, fix=fix) from error


def require_final(error: ProtocolError) -> None:
    """Return when a refusal is final; raise TransientError when the same receipt may still be taken."""
    if error.code not in FINAL_CODES:
        raise TransientError(error.code, error.message) from error


def require_promise(
    answer: SubmissionAnswer,
    receipt: Receipt,
    *,
    domain: Domain,
    operator: Address,
    first: ChainMoment,
    last: ChainMoment,
    draw_seconds: int,
) -> Countersignature:
    """The operator's promise for `receipt`; raise ProtocolError("bad_countersignature") for a wrong or dated one.

    `first`: the chain when the receipt was first sent.  `last`: the time and the ledger's epochs when the answer came,
    on this worker's clock.  A promise dated `draw_seconds` before `first` would let the coordinator know the draw when
    it signs; one dated more than MOST_AHEAD_SECONDS after `last` would put the draw, and the pay, off.
    """
    promise = Countersignature(
        receipt_hash=answer.receipt_hash, signed_at=answer.signed_at, latest_epoch=answer.latest_epoch
    )
    if promise.receipt_hash != eip712.compute_struct_hash(receipt):
        raise ProtocolError("bad_countersignature", "it is for another receipt")
    if eip712.recover_signer(promise, domain, answer.signature) != operator:
        raise ProtocolError("bad_countersignature", "it is not signed by the pool's operator")
    earliest, latest = first.time - draw_seconds, last.time + MOST_AHEAD_SECONDS
    if not earliest < promise.signed_at <= latest:
        message = f"it is dated {promise.signed_at}, which is not after {earliest} and up to {latest}"
        raise ProtocolError("bad_countersignature", message)
    farthest = last.epochs + MOST_PROMISED_EPOCHS
    if not first.epochs <= promise.latest_epoch <= farthest:
        message = f"it names epoch {promise.latest_epoch}, {first.epochs} to {farthest} are fair"
        raise ProtocolError("bad_countersignature", message)
    return promise
