"""Recording a signed receipt: what it must fulfil, its row, and the operator's countersignature."""

from dataclasses import dataclass

from coordinator.db.models import NodeRow, SubmissionRow, TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import nodes
from coordinator.domain.tasks import require_lease
from covey.errors import ProtocolError
from covey.protocol import eip712, messages
from covey.protocol.canaries import CanaryKind
from covey.protocol.ids import Hash
from covey.protocol.params import PoolParams
from covey.protocol.status import (
    TASK_MOVES,
    TaskState,
    require_move,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Countersigned:
    """The operator's promise, as recorded."""

    message: messages.Countersignature
    signature: str


def find_promise(repository: Repository, receipt: messages.Receipt) -> Countersigned | None:
    """The promise that was given for a receipt; None where nothing is recorded of its lease.

    Raises ProtocolError "not_your_task", "equivocation" or "duplicate_submission" where another receipt is recorded,
    and "bad_message" for a receipt that has no hash.
    """
    receipt_hash = eip712.compute_struct_hash(receipt)
    known = repository.find_submission(task=receipt.task, lease=receipt.lease)
    return None if known is None else _answer_again(known, receipt, receipt_hash)


def record(
    repository: Repository,
    task: TaskRow,
    *,
    receipt: messages.Receipt,
    signature: str,
    promise: Countersigned,
    price: int,
    undrawn_limit: int,
    draw_seconds: int,
    canary: CanaryKind = CanaryKind.ORDINARY,
) -> None:
    """Record the receipt of a task, as `require_new` returned it; its file lies in the store and was verified.

    It is replayed for certain if it and the contributor's other work that no replay was asked for would earn more than
    `undrawn_limit`, see `Repository.sum_unreplayed_units`.  `price` is that of a unit; both are in the token's smallest
    unit.
    """
    row = _to_row(receipt, signature, promise)
    row.canary = canary
    row.look_at = promise.message.signed_at + draw_seconds
    if price * (repository.sum_unreplayed_units(receipt.contributor) + receipt.units) > undrawn_limit:
        row.audited = True
    repository.add(row)
    task.state = require_move(TASK_MOVES, task.state, TaskState.SUBMITTED)


def require_new(repository: Repository, params: PoolParams, *, receipt: messages.Receipt, now: float) -> TaskRow:
    """The task of a receipt that nothing is recorded of yet.

    Raises ProtocolError: those of `require_lease`, "bad_receipt", "stale", "duplicate_submission".
    """
    node = nodes.require_node(repository, receipt.node)
    task = require_lease(repository, node=receipt.node, task=receipt.task, lease=receipt.lease, now=now)
    _require_receipt(params, receipt, task, node, now)
    latest = repository.get_latest_step()
    if latest is not None and latest.number - task.policy_version > params.max_staleness:
        raise ProtocolError("stale", f"policy {task.policy_version} is too old at step {latest.number}", status=409)
    if repository.is_work_key_used(receipt.work_key):
        raise ProtocolError("duplicate_submission", "another receipt names the same file", status=409)
    return task


def _answer_again(known: SubmissionRow, receipt: messages.Receipt, receipt_hash: Hash) -> Countersigned:
    if known.node != receipt.node:
        raise ProtocolError("not_your_task", f"task {receipt.task} was not leased to {receipt.node}", status=403)
    if known.receipt_hash != receipt_hash:
        code = "equivocation" if known.work_key != receipt.work_key else "duplicate_submission"
        raise ProtocolError(code, "another receipt was given for this lease", status=409)
    return get_countersigned(known)


def get_countersigned(row: SubmissionRow) -> Countersigned:
    """The promise that was given for a recorded submission."""
    message = messages.Countersignature(
        receipt_hash=Hash(row.receipt_hash), signed_at=row.signed_at, latest_epoch=row.latest_epoch
    )
    return Countersigned(message=message, signature=row.countersignature)


def _require_receipt(params: PoolParams, receipt: messages.Receipt, task: TaskRow, node: NodeRow, now: float) -> None:
    wrong = (
        (receipt.policy_version != task.policy_version, f"the task's policy version is {task.policy_version}"),
        (receipt.contributor != node.contributor, f"the node's contributor is {node.contributor}"),
        (receipt.groups != task.groups, f"the task has {task.groups} groups"),
        (not 0 < receipt.units <= params.max_task_units, f"units are 1 to {params.max_task_units}"),
        (receipt.deadline <= now, "the receipt has expired"),
    )
    for is_wrong, message in wrong:
        if is_wrong:
            raise ProtocolError("bad_receipt", message)


def _to_row(receipt: messages.Receipt, signature: str, promise: Countersigned) -> SubmissionRow:
    return SubmissionRow(
        receipt_hash=promise.message.receipt_hash,
        task=receipt.task,
        lease=receipt.lease,
        node=receipt.node,
        contributor=receipt.contributor,
        policy_version=receipt.policy_version,
        work_key=receipt.work_key,
        groups=receipt.groups,
        units=receipt.units,
        receipt_units=receipt.units,
        deadline=receipt.deadline,
        signature=signature,
        signed_at=promise.message.signed_at,
        latest_epoch=promise.message.latest_epoch,
        countersignature=promise.signature,
    )


def to_receipt(row: SubmissionRow, pool: int) -> messages.Receipt:
    """The receipt as its node signed it."""
    return messages.Receipt(
        pool=pool,  # type: ignore[arg-type]
        task=row.task,  # type: ignore[arg-type]
        lease=row.lease,  # type: ignore[arg-type]
        node=row.node,  # type: ignore[arg-type]
        contributor=row.contributor,  # type: ignore[arg-type]
        policy_version=row.policy_version,  # type: ignore[arg-type]
        work_key=row.work_key,  # type: ignore[arg-type]
        groups=row.groups,
        units=row.receipt_units,
        deadline=row.deadline,
    )
