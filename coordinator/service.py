"""The life of tasks and submissions as functions of a repository, parameters and a given time.

Called by `api`, `queue` and `loop`; judging and settlement have files of their own.  Nothing here sleeps, sends or
commits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator import scheduling, standing
from coordinator.batches import close_step, get_oldest_version, plan_tasks
from coordinator.db import Repository
from coordinator.models import Node, Step, Submission, Task
from covey.errors import ProtocolError
from covey.protocol import eip712, messages
from covey.protocol.canaries import CanaryKind
from covey.protocol.ids import Hash, LeaseId, TaskId
from covey.protocol.params import PoolParams
from covey.protocol.status import (
    STEP_MOVES,
    SUBMISSION_MOVES,
    TASK_MOVES,
    StepState,
    SubmissionState,
    TaskState,
    require_move,
)
from covey.protocol.verdict import Reason

COLLECT_SECONDS = 5.0
"""A lease that nobody collects for so long goes back without blame: the node's long poll had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Countersigned:
    """The operator's promise, as recorded."""

    message: messages.Countersignature
    signature: str


def open_step(
    repository: Repository, params: PoolParams, *, number: int, manifest_hash: Hash, block: int, now: float
) -> Step:
    """A policy was published: its step opens, the one before is trained, new tasks are planned.  Idempotent."""
    step = repository.get_step(number)
    if step is not None and step.manifest_hash:  # told again, or anew after a reorganisation
        if step.manifest_hash != manifest_hash:
            _void_work(repository, number, now)
        step.manifest_hash, step.block_number = manifest_hash, block
        return step
    before = repository.get_step(number - 1)
    if before is not None:
        if before.state is StepState.OPEN:  # the chain is ahead of what this coordinator packed
            before.state = require_move(STEP_MOVES, before.state, StepState.READY)
        before.state = require_move(STEP_MOVES, before.state, StepState.TRAINED)
    step = step or Step(number=number, state=StepState.OPEN)
    step.manifest_hash, step.block_number = manifest_hash, block
    repository.add(step)
    plan_tasks(repository, params)
    close_step(repository, params)
    return step


def is_next(repository: Repository, number: int) -> bool:
    """Whether a step may open: it has not, and the batch before is packed."""
    before = repository.get_step(number - 1)
    return before is not None and before.state is not StepState.OPEN and repository.get_step(number) is None


def open_ahead(repository: Repository, params: PoolParams, *, number: int) -> None:
    """The trainer asks for a step's batch, so it has the policy, be it on chain or not yet: the step opens if it is the
    next."""
    if is_next(repository, number):
        repository.add(Step(number=number, state=StepState.OPEN))
        close_step(repository, params)


def _void_work(repository: Repository, version: int, now: float) -> None:
    """A reorganisation gave a version another policy: what was begun with the first one would look like fraud."""
    for task in repository.list_tasks(TaskState.ASSIGNED):
        if task.policy_version == version:
            task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)
    for row in repository.list_submissions(SubmissionState.SUBMITTED):
        if row.policy_version == version:
            row.state = require_move(SUBMISSION_MOVES, row.state, SubmissionState.VOID)
            row.reason, row.units, row.decided_at = Reason.UNDECIDED, 0, now


def assign_tasks(repository: Repository, params: PoolParams, *, now: float) -> int:
    """Lease pending tasks to nodes that wait for one, each of the newest policy that its node has; return how many.
    Called by Celery only."""
    latest = repository.get_latest_step()
    if latest is None:
        return 0
    oldest = get_oldest_version(repository, params)
    pending = [task for task in repository.list_tasks(TaskState.PENDING) if task.policy_version >= oldest]
    if not pending:
        return 0
    candidates = [
        scheduling.Candidate(
            address=node.address,
            free_slots=standing.count_free_slots(repository, node),
            accepted=node.accepted,
            dropped=node.dropped,
            cached_version=None if node.cached_version is None else min(node.cached_version, latest.number),
        )
        for node in repository.list_waiting_nodes(now)
    ]
    tasks = {task.id: task for task in pending}
    pairs = scheduling.match((scheduling.Work(task.id, task.policy_version) for task in pending), candidates)
    for work, candidate in pairs:
        version = work.version if candidate.cached_version is None else candidate.cached_version
        _lease(repository, tasks[work.task], candidate.address, version, now)
    return len(pairs)


def _lease(repository: Repository, task: Task, node: str, version: int, now: float) -> None:
    lease = repository.get_fact("lease") + 1
    repository.set_fact("lease", lease)
    task.policy_version = version
    task.state = require_move(TASK_MOVES, task.state, TaskState.ASSIGNED)
    task.node, task.lease, task.collected, task.deadline = node, lease, False, now + COLLECT_SECONDS


def collect_task(
    repository: Repository, params: PoolParams, *, node: str, instance: str, now: float, holding: Sequence[int] = ()
) -> Task | None:
    """The node takes the lease that waits for it; only now its clock starts, and its long poll is over.

    A lease that it collected and does not hold was lost by a crash or with an answer: it comes again, on its old clock.
    Raises ProtocolError("another_instance") if another worker with the node's key was heard since it asked.
    """
    row = standing.require_node(repository, node)
    standing.require_instance(row, instance, now)
    task = repository.get_assigned_task(node, holding)
    if task is None:
        return None
    row.waiting_until = 0.0
    if not task.collected:
        task.collected, task.deadline = True, now + params.lease_seconds
    return task


def expire_leases(repository: Repository, params: PoolParams, *, now: float) -> int:
    """End overdue leases and outdated tasks, plan anew, cool droppers down; return how many ended."""
    oldest, ended = get_oldest_version(repository, params), 0
    for task in repository.list_tasks(TaskState.PENDING, TaskState.ASSIGNED):
        overdue = task.state is TaskState.ASSIGNED and task.deadline <= now
        if not overdue and not (task.policy_version < oldest and task.state is TaskState.PENDING):
            continue
        task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)
        node = repository.get_node(task.node or "")
        if overdue and node is not None:
            standing.cool_down(repository, params, node, now, is_dropped=task.collected)
        ended += 1
    plan_tasks(repository, params)
    return ended


def return_task(
    repository: Repository, params: PoolParams, *, node: str, task: TaskId, lease: LeaseId, now: float
) -> None:
    """End a lease by the wish of its node, which is dropping it, and plan anew; raises as `require_lease`."""
    row = require_lease(repository, node=node, task=task, lease=lease, now=now)
    row.state = require_move(TASK_MOVES, row.state, TaskState.EXPIRED)
    standing.cool_down(repository, params, standing.require_node(repository, node), now, is_dropped=True)
    plan_tasks(repository, params)


def end_tasks(repository: Repository) -> None:
    """The pool has ended: what nobody has begun is not begun any more."""
    for task in repository.list_tasks(TaskState.PENDING):
        task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)


def require_lease(repository: Repository, *, node: str, task: TaskId, lease: LeaseId, now: float) -> Task:
    """The task that `node` holds by `lease`; raise ProtocolError "unknown_task", "not_your_task", "lease_expired"."""
    row = repository.get_task(task)
    if row is None:
        raise ProtocolError("unknown_task", f"there is no task {task}", status=404)
    if row.node != node:
        raise ProtocolError("not_your_task", f"task {task} is not leased to {node}", status=403)
    if row.lease != lease or row.state is not TaskState.ASSIGNED or row.deadline <= now:
        raise ProtocolError("lease_expired", f"lease {lease} of task {task} is over; claim another task", status=409)
    return row


def record_submission(
    repository: Repository,
    params: PoolParams,
    *,
    receipt: messages.Receipt,
    signature: str,
    countersign: Callable[[Hash], Countersigned],
    now: float,
    price: int,
    undrawn_limit: int,
    canary: CanaryKind = CanaryKind.ORDINARY,
) -> Countersigned:
    """Record a signed receipt whose file lies in the store; the same receipt again gets the same answer.

    It is replayed for certain if it and the contributor's other work that no replay was asked for would earn more than
    `undrawn_limit`, see `Repository.sum_unreplayed_units`.  `price` is that of a unit; both are in the token's smallest
    unit.

    Raises ProtocolError: those of `require_lease`, "stale", "duplicate_submission", "equivocation", "bad_receipt".
    The caller has verified the signature and the file's hash.
    """
    receipt_hash = eip712.compute_struct_hash(receipt)
    known = repository.find_submission(task=receipt.task, lease=receipt.lease)
    if known is not None:
        return _answer_again(known, receipt, receipt_hash)
    task = require_new(repository, params, receipt=receipt, now=now)
    promise = countersign(receipt_hash)
    row = _to_row(receipt, receipt_hash, signature, promise)
    row.canary = canary
    if price * (repository.sum_unreplayed_units(receipt.contributor) + receipt.units) > undrawn_limit:
        row.audited = True
    repository.add(row)
    task.state = require_move(TASK_MOVES, task.state, TaskState.SUBMITTED)
    return promise


def require_new(repository: Repository, params: PoolParams, *, receipt: messages.Receipt, now: float) -> Task:
    """The task of a receipt that nothing is recorded of yet; raises as `record_submission`."""
    node = standing.require_node(repository, receipt.node)
    task = require_lease(repository, node=receipt.node, task=receipt.task, lease=receipt.lease, now=now)
    _require_receipt(params, receipt, task, node, now)
    latest = repository.get_latest_step()
    if latest is not None and latest.number - task.policy_version > params.max_staleness:
        raise ProtocolError("stale", f"policy {task.policy_version} is too old at step {latest.number}", status=409)
    if repository.is_work_key_used(receipt.work_key):
        raise ProtocolError("duplicate_submission", "another receipt names the same file", status=409)
    return task


def _answer_again(known: Submission, receipt: messages.Receipt, receipt_hash: Hash) -> Countersigned:
    if known.node != receipt.node:
        raise ProtocolError("not_your_task", f"task {receipt.task} was not leased to {receipt.node}", status=403)
    if known.receipt_hash != receipt_hash:
        code = "equivocation" if known.work_key != receipt.work_key else "duplicate_submission"
        raise ProtocolError(code, "another receipt was given for this lease", status=409)
    return get_countersigned(known)


def get_countersigned(row: Submission) -> Countersigned:
    """The promise that was given for a recorded submission."""
    message = messages.Countersignature(
        receipt_hash=Hash(row.receipt_hash), signed_at=row.signed_at, latest_epoch=row.latest_epoch
    )
    return Countersigned(message=message, signature=row.countersignature)


def _require_receipt(params: PoolParams, receipt: messages.Receipt, task: Task, node: Node, now: float) -> None:
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


def _to_row(receipt: messages.Receipt, receipt_hash: Hash, signature: str, promise: Countersigned) -> Submission:
    return Submission(
        receipt_hash=receipt_hash,
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


def to_receipt(row: Submission, pool: int) -> messages.Receipt:
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
