"""Records signed receipts: the checks that a receipt must pass, its row, and the operator's countersignature."""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from coordinator.db.models import NodeRow, StepRow, SubmissionRow, TaskRow
from coordinator.db.rate_queries import MinuteCounts
from coordinator.db.repository import Repository
from coordinator.domain import audit_draws, nodes
from coordinator.domain.tasks import require_lease
from covey.errors import CoveyError, ProtocolError
from covey.protocol import eip712, messages
from covey.protocol.canaries import CanaryKind
from covey.protocol.ids import Hash
from covey.protocol.params import PoolParams
from covey.protocol.prices import compute_reward
from covey.protocol.status import (
    TASK_MOVES,
    TaskState,
    require_move,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Countersigned:
    """The operator's signed promise to settle a submission."""

    message: messages.Countersignature
    signature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedReceipt:
    """A receipt whose file is verified and stored, with the promise to record for it."""

    receipt: messages.Receipt
    signature: str
    promise: Countersigned
    undrawn_limit: int
    """Reward, in the token's smallest unit, up to which the contributor's work needs no certain replay."""
    canary: CanaryKind = CanaryKind.ORDINARY
    consent: str = ""
    """Signature by which the contributor confirms a canary. Empty for ordinary work."""


def check_receipts(
    repository: Repository, params: PoolParams, receipts: Sequence[messages.Receipt], *, now: float
) -> list[Countersigned | TaskRow | CoveyError]:
    """Check receipts. Return for each one the promise if it is recorded, its task if it is new, or its error.

    Errors are ProtocolError with these codes, and those of `nodes.require_node` and `tasks.require_lease`:

    - "not_your_task", "equivocation" or "duplicate_submission" if another receipt is recorded for its lease or file
    - "bad_receipt" if it does not fit its task or has expired, and "stale" if its policy is too old
    - "bad_message" if it cannot be hashed
    """
    tasks = {int(receipt.task) for receipt in receipts}
    repository.load_nodes({receipt.node for receipt in receipts})
    repository.load_tasks(tasks)
    known = {(row.task, row.lease): row for row in repository.list_submissions_of(tasks)}
    used = repository.list_used_work_keys({receipt.work_key for receipt in receipts})
    latest = repository.get_latest_step()
    results: list[Countersigned | TaskRow | CoveyError] = []
    for receipt in receipts:
        try:
            recorded = known.get((receipt.task, receipt.lease))
            if recorded is not None:
                results.append(_answer_again(recorded, receipt, eip712.compute_struct_hash(receipt)))
            else:
                results.append(_require_new(repository, params, receipt, latest=latest, used=used, now=now))
        except CoveyError as error:
            results.append(error)
    return results


def record_receipts(
    repository: Repository, params: PoolParams, handed_in: Sequence[VerifiedReceipt], *, price: int, now: float
) -> list[Countersigned | CoveyError]:
    """Record receipts, and return the recorded promise or the error of each. Errors are those of `check_receipts`.

    A submission is certainly replayed if its reward, and that of the contributor's other work without a replay
    (`Repository.sum_unreplayed_units`), would exceed its `undrawn_limit`. `price` is the reward of
    1,000,000 units, in the token's smallest unit.
    """
    checked = check_receipts(repository, params, [each.receipt for each in handed_in], now=now)
    units = repository.sum_unreplayed_units({each.receipt.contributor for each in handed_in})
    results: list[Countersigned | CoveyError] = []
    rows: list[SubmissionRow] = []
    leases: set[tuple[int, int]] = set()
    files: set[str] = set()
    for each, found in zip(handed_in, checked, strict=True):
        receipt = each.receipt
        if not isinstance(found, TaskRow):
            results.append(found)
            continue
        if (receipt.task, receipt.lease) in leases or receipt.work_key in files:  # Within this batch.
            results.append(ProtocolError("duplicate_submission", "another receipt came at the same time", status=409))
            continue
        leases.add((receipt.task, receipt.lease))
        files.add(receipt.work_key)
        row = _to_row(receipt, each.signature, each.promise)
        row.contract = found.contract
        row.canary, row.consent = each.canary, each.consent
        row.next_check_at = now + params.verification.draw_seconds + audit_draws.UNDRAWN_CHECK_SECONDS
        before = units.get(receipt.contributor, 0)
        if compute_reward(before + receipt.units, price) > each.undrawn_limit:
            row.audited = True
        else:
            units[receipt.contributor] = before + receipt.units
        rows.append(row)
        found.state = require_move(TASK_MOVES, found.state, TaskState.SUBMITTED)
        results.append(each.promise)
    repository.add_all(rows)
    repository.add_to_minute(now, MinuteCounts(submitted=len(rows)))
    return results


def _require_new(
    repository: Repository,
    params: PoolParams,
    receipt: messages.Receipt,
    *,
    latest: StepRow | None,
    used: Container[str],
    now: float,
) -> TaskRow:
    """Return the task of a receipt whose lease has no recorded receipt yet."""
    node = nodes.require_node(repository, receipt.node)
    task = require_lease(repository, node=receipt.node, task=receipt.task, lease=receipt.lease, now=now)
    _require_receipt(params, receipt, task, node, now)
    if latest is not None and latest.number - task.policy_version > params.max_staleness:
        raise ProtocolError("stale", f"policy {task.policy_version} is too old at step {latest.number}", status=409)
    if receipt.work_key in used:
        raise ProtocolError("duplicate_submission", "another receipt names the same file", status=409)
    eip712.compute_struct_hash(receipt)
    return task


def _answer_again(known: SubmissionRow, receipt: messages.Receipt, receipt_hash: Hash) -> Countersigned:
    if known.node != receipt.node:
        raise ProtocolError("not_your_task", f"task {receipt.task} was not leased to {receipt.node}", status=403)
    if known.receipt_hash != receipt_hash:
        code = "equivocation" if known.work_key != receipt.work_key else "duplicate_submission"
        raise ProtocolError(code, "another receipt was given for this lease", status=409)
    return get_countersigned(known)


def get_countersigned(row: SubmissionRow) -> Countersigned:
    """Return the promise that was recorded for a submission."""
    message = messages.Countersignature(receipt_hash=Hash(row.receipt_hash), signed_at=row.signed_at, due_by=row.due_by)
    return Countersigned(message=message, signature=row.countersignature)


def _require_receipt(params: PoolParams, receipt: messages.Receipt, task: TaskRow, node: NodeRow, now: float) -> None:
    wrong = (
        (receipt.policy_version != task.policy_version, f"the task's policy version is {task.policy_version}"),
        (receipt.contributor != node.contributor, f"the node's contributor is {node.contributor}"),
        (receipt.groups != task.groups, f"the task has {task.groups} groups"),
        (not 0 < receipt.units <= params.max_task_units, f"units must be from 1 to {params.max_task_units}"),
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
        due_by=promise.message.due_by,
        countersignature=promise.signature,
    )


def to_receipt(row: SubmissionRow, pool: int) -> messages.Receipt:
    """Return the receipt of a submission, as its node signed it."""
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
