"""What a step's batch is made of: how many tasks it still needs, when it is full, and what its groups count.

With the pool's online filter (the paper, section 3.3.2) only live groups fill a
batch; dead ones come along, are paid, and count against the cap on sampling.
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
    """Add the tasks that are missing for the latest policy; return how many."""
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
    """Pack the oldest fresh accepted work into the open step's batch when that makes it full, or with the online
    filter as large as it may be; return the step if ready."""
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
    """The oldest policy whose work may still be trained on: the next batch's."""
    return max(0, repository.count_closed_batches() - params.max_staleness)


def open_step(
    repository: Repository, params: PoolParams, *, number: int, record_hash: Hash, block: int, now: float
) -> StepRow:
    """A policy was published: its step opens, the one before is trained, new tasks are planned.  Idempotent."""
    step = repository.get_step(number)
    if step is not None and step.record_hash:  # The event is delivered again, or a second time after a reorganization.
        if step.record_hash != record_hash:
            _void_work(repository, number, now)
        step.record_hash, step.block_number = record_hash, block
        return step
    before = repository.get_step(number - 1)
    if before is not None:
        if before.state is StepState.OPEN:  # the chain is ahead of what this coordinator packed
            before.state = require_move(STEP_MOVES, before.state, StepState.READY)
        before.state = require_move(STEP_MOVES, before.state, StepState.TRAINED)
    step = step or StepRow(number=number, state=StepState.OPEN)
    step.record_hash, step.block_number = record_hash, block
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
        repository.add(StepRow(number=number, state=StepState.OPEN))
        close_step(repository, params)


def _void_work(repository: Repository, version: int, now: float) -> None:
    """A reorganization gave a version another policy: what was begun with the first one would look like fraud."""
    for task in repository.list_tasks(TaskState.ASSIGNED):
        if task.policy_version == version:
            task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)
    for row in repository.list_submissions(SubmissionState.SUBMITTED):
        if row.policy_version == version:
            row.state = require_move(SUBMISSION_MOVES, row.state, SubmissionState.VOID)
            row.decision, row.decided_at = Decision.UNKNOWN, now
            row.reason, row.units = Reason.UNDECIDED, 0
