"""What a step's batch is made of: how many tasks it still needs, when it is full, and what its groups count.

Called by `service` and `judging`.  With the pool's online filter (the paper, section 3.3.2) only live groups fill a
batch; dead ones come along, are paid, and count against the cap on sampling.
"""

from collections.abc import Sequence

from coordinator import scheduling
from coordinator.db import Repository
from coordinator.models import Step, Submission, Task
from coordinator.scheduling import Groups
from covey.protocol.params import PoolParams
from covey.protocol.status import STEP_MOVES, StepState, TaskState, require_move
from covey.runtime.log import get_logger


def plan_tasks(repository: Repository, params: PoolParams) -> int:
    """Add the tasks that are missing for the latest policy; return how many."""
    step = repository.get_latest_step()
    if step is None or repository.get_fact("ended"):
        return 0
    plan = _count_filtered if params.online_filter else _count
    count = plan(repository, params, step.number)
    for _ in range(count):
        repository.add(Task(policy_version=step.number, groups=params.groups_per_task, state=TaskState.PENDING))
    return count


def _count(repository: Repository, params: PoolParams, step: int) -> int:
    oldest = get_oldest_version(repository, params)
    return scheduling.count_tasks_to_plan(
        params,
        step=step,
        packed_groups=repository.count_packed_groups(),
        unpacked_groups=sum_groups(repository.list_unpacked(oldest_version=oldest)).sampled,
        groups_in_flight=repository.count_groups_in_flight(oldest_version=oldest),
    )


def _count_filtered(repository: Repository, params: PoolParams, step: int) -> int:
    oldest = get_oldest_version(repository, params)
    return scheduling.count_tasks_to_sample(
        params,
        step=step,
        closed_batches=repository.count_closed_batches(),
        unpacked=sum_groups(repository.list_unpacked(oldest_version=oldest)),
        groups_in_flight=repository.count_groups_in_flight(oldest_version=oldest),
        seen=Groups(*repository.sum_accepted_groups(oldest_version=oldest)),
    )


def close_step(repository: Repository, params: PoolParams) -> Step | None:
    """Pack the oldest fresh accepted work into the open step's batch when that makes it full, or with the online
    filter as large as it may be; return the step if ready."""
    step = repository.get_open_step()
    if step is None:
        return None
    fresh = repository.list_unpacked(oldest_version=get_oldest_version(repository, params))
    count = scheduling.find_batch(params, [sum_groups([row]) for row in fresh])
    if count is None:
        return None
    for submission in fresh[:count]:
        submission.step = step.number
    held = sum_groups(fresh[:count])
    if scheduling.is_capped(params, held):
        get_logger().warning("a batch has too few live groups", step=step.number, **held._asdict())
    step.state = require_move(STEP_MOVES, step.state, StepState.READY)
    return step


def get_oldest_version(repository: Repository, params: PoolParams) -> int:
    """The oldest policy whose work may still be trained on: the next batch's."""
    return max(0, repository.count_closed_batches() - params.max_staleness)


def sum_groups(rows: Sequence[Submission]) -> Groups:
    """All groups of accepted submissions."""
    return Groups(sampled=sum(row.groups for row in rows), live=sum(row.live_groups for row in rows))


def compute_live_groups(params: PoolParams, row: Submission, told: Sequence[int | None]) -> int:
    """Live groups of an accepted submission, by the words of the verdicts that decided it: the smallest, so that fewer
    hostile validators than the quorum never pass dead work for live.  Too small a word costs sampling, up to the cap,
    and stands under its validator's signature.

    Without a word a submission counts nothing where the filter goes by it, and whole where it does not.
    """
    if len(set(told)) > 1:
        get_logger().warning("validators differ about live groups", task=row.task, told=list(told))
    silent = 0 if params.online_filter else row.groups
    return min((silent if count is None else count for count in told), default=silent)
