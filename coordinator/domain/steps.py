"""Steps and their batches: how many tasks a batch still needs, and when it is full.

With the pool's online filter (the paper, section 3.3.2), only live groups fill a batch. Dead groups are included and
paid, and count towards the cap on sampling.
"""

from coordinator.db.models import StepRow
from coordinator.db.repository import Repository
from coordinator.domain import scheduling
from coordinator.domain.scheduling import Groups
from covey.protocol.ids import Hash
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
from covey.protocol.verdict import Decision, Reason
from covey.runtime.log import get_logger


def plan_tasks(repository: Repository, params: PoolParams) -> int:
    """Add the missing tasks of the latest policy, and return their number."""
    step = repository.get_latest_step()
    if step is None or repository.get_fact("ended"):
        return 0
    plan = _count_filtered if params.online_filter else _count
    count = plan(repository, params, step.number)
    repository.add_tasks(count, policy_version=step.number, groups=params.groups_per_task)
    return count


def _count(repository: Repository, params: PoolParams, step: int) -> int:
    oldest = get_oldest_version(repository, params)
    return scheduling.count_tasks_to_plan(
        params,
        step=step,
        packed_groups=repository.count_packed_groups(),
        unpacked_groups=repository.sum_unpacked(oldest_version=oldest)[0],
        groups_in_flight=repository.count_groups_in_flight(oldest_version=oldest),
    )


def _count_filtered(repository: Repository, params: PoolParams, step: int) -> int:
    oldest = get_oldest_version(repository, params)
    return scheduling.count_tasks_to_sample(
        params,
        step=step,
        closed_batches=repository.count_closed_batches(),
        unpacked=Groups(*repository.sum_unpacked(oldest_version=oldest)),
        groups_in_flight=repository.count_groups_in_flight(oldest_version=oldest),
        seen=Groups(*repository.sum_accepted_groups(oldest_version=oldest)),
    )


def close_step(repository: Repository, params: PoolParams) -> StepRow | None:
    """Pack the oldest fresh accepted work into the open step's batch, if there is enough to fill it.

    With the online filter, a batch at the cap on sampling is full, too. Returns the step if it is ready, or None.
    """
    step = repository.get_open_step()
    if step is None:
        return None
    oldest = get_oldest_version(repository, params)
    if scheduling.find_batch(params, [Groups(*repository.sum_unpacked(oldest_version=oldest))]) is None:
        return None
    fresh = repository.list_unpacked(oldest_version=oldest)
    count = scheduling.find_batch(params, [Groups(groups, live) for _, groups, live in fresh])
    chosen = fresh[:count]
    held = Groups(sampled=sum(groups for _, groups, _ in chosen), live=sum(live for _, _, live in chosen))
    repository.pack(step, [receipt_hash for receipt_hash, _, _ in chosen], groups=held.sampled, live_groups=held.live)
    if scheduling.is_capped(params, held):
        get_logger().warning("a batch has too few live groups", step=step.number, **held._asdict())
    step.state = require_move(STEP_MOVES, step.state, StepState.READY)
    return step


def get_oldest_version(repository: Repository, params: PoolParams) -> int:
    """Return the oldest policy whose work the next batch may still contain."""
    return max(0, repository.count_closed_batches() - params.max_staleness)


def open_step(
    repository: Repository, params: PoolParams, *, number: int, record_hash: Hash, block: int, now: float
) -> StepRow:
    """Open the step of a published policy, mark the previous step as trained, and plan new tasks.

    The same event again changes nothing. If a reorganization has replaced the policy, work on the old one becomes void.
    """
    step = repository.get_step(number)
    if step is not None and step.record_hash:  # The event was delivered before, possibly in another block.
        if step.record_hash != record_hash:
            _void_work(repository, number, now)
            step.announced_at = now
        step.record_hash, step.block_number = record_hash, block
        return step
    before = repository.get_step(number - 1)
    if before is not None:
        if before.state is StepState.OPEN:  # The chain is ahead of this coordinator, which has not packed the batch.
            before.state = require_move(STEP_MOVES, before.state, StepState.READY)
        before.state = require_move(STEP_MOVES, before.state, StepState.TRAINED)
    step = step or StepRow(number=number, state=StepState.OPEN)
    step.record_hash, step.block_number, step.announced_at = record_hash, block, now
    repository.add(step)
    plan_tasks(repository, params)
    close_step(repository, params)
    return step


def is_next(repository: Repository, number: int) -> bool:
    """Return whether a step may open: it has not opened, and the batch of the previous step is packed."""
    before = repository.get_step(number - 1)
    return before is not None and before.state is not StepState.OPEN and repository.get_step(number) is None


def open_ahead(repository: Repository, params: PoolParams, *, number: int) -> None:
    """Open a step whose batch the trainer requests, if it is the next one.

    The trainer has the step's policy, even if it is not on chain yet.
    """
    if is_next(repository, number):
        repository.add(StepRow(number=number, state=StepState.OPEN))
        close_step(repository, params)


def _void_work(repository: Repository, version: int, now: float) -> None:
    """End tasks and void undecided submissions of a version whose policy a reorganization has replaced.

    Work on the old policy would otherwise look like fraud.
    """
    for task in repository.list_tasks(TaskState.ASSIGNED):
        if task.policy_version == version:
            task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)
    for row in repository.list_submissions(SubmissionState.SUBMITTED):
        if row.policy_version == version:
            row.state = require_move(SUBMISSION_MOVES, row.state, SubmissionState.VOID)
            row.decision, row.decided_at = Decision.UNKNOWN, now
            row.reason, row.units = Reason.UNDECIDED, 0
