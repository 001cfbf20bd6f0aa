"""The life of a task as functions of a repository, parameters and a given time: planned, leased, collected, returned.

Nothing here sleeps, sends or commits.
"""

from collections.abc import Sequence

from coordinator.db.models import TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import nodes, scheduling
from coordinator.domain.steps import get_oldest_version, plan_tasks
from covey.errors import ProtocolError
from covey.protocol.ids import LeaseId, TaskId
from covey.protocol.params import PoolParams
from covey.protocol.status import (
    TASK_MOVES,
    TaskState,
    require_move,
)

COLLECT_SECONDS = 5.0
"""A lease that nobody collects for so long goes back without blame: the node's long poll had ended."""


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
            free_slots=nodes.count_free_slots(repository, node),
            accepted=node.accepted,
            dropped=node.dropped,
            cached_version=None if node.cached_version is None else min(node.cached_version, latest.number),
        )
        for node in repository.list_waiting_nodes(now)
    ]
    tasks = {task.id: task for task in pending}
    pairs = scheduling.match((scheduling.PlannedTask(task.id, task.policy_version) for task in pending), candidates)
    for work, candidate in pairs:
        version = work.version if candidate.cached_version is None else candidate.cached_version
        _lease(repository, tasks[work.task], candidate.address, version, now)
    return len(pairs)


def _lease(repository: Repository, task: TaskRow, node: str, version: int, now: float) -> None:
    lease = repository.get_fact("lease") + 1
    repository.set_fact("lease", lease)
    task.policy_version = version
    task.state = require_move(TASK_MOVES, task.state, TaskState.ASSIGNED)
    task.node, task.lease = node, lease
    task.offered_until, task.collected_at, task.ends_at = now + COLLECT_SECONDS, None, None


def collect_task(
    repository: Repository, params: PoolParams, *, node: str, instance: str, now: float, holding: Sequence[int] = ()
) -> TaskRow | None:
    """The node takes the lease that waits for it; only now its clock starts, and its long poll is over.

    A lease that it collected and does not hold was lost by a crash or with an answer: it comes again, on its old clock.
    Raises ProtocolError("another_instance") if another worker with the node's key was heard since it asked.
    """
    row = nodes.require_node(repository, node)
    nodes.require_instance(row, instance, now)
    task = repository.get_assigned_task(node, holding)
    if task is None:
        return None
    row.waiting_until = 0.0
    if task.collected_at is None:
        task.collected_at, task.ends_at = now, now + params.lease_seconds
    return task


def expire_leases(repository: Repository, params: PoolParams, *, now: float) -> int:
    """End overdue leases and outdated tasks, plan anew, cool droppers down; return how many ended."""
    oldest, ended = get_oldest_version(repository, params), 0
    for task in repository.list_tasks(TaskState.PENDING, TaskState.ASSIGNED):
        overdue = task.state is TaskState.ASSIGNED and task.expires_at <= now
        if not overdue and not (task.policy_version < oldest and task.state is TaskState.PENDING):
            continue
        task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)
        node = repository.get_node(task.node or "")
        if overdue and node is not None:
            nodes.cool_down(repository, params, node, now, is_dropped=task.collected_at is not None)
        ended += 1
    plan_tasks(repository, params)
    return ended


def return_task(
    repository: Repository, params: PoolParams, *, node: str, task: TaskId, lease: LeaseId, now: float
) -> None:
    """End a lease by the wish of its node, which is dropping it, and plan anew; raises as `require_lease`."""
    row = require_lease(repository, node=node, task=task, lease=lease, now=now)
    row.state = require_move(TASK_MOVES, row.state, TaskState.EXPIRED)
    nodes.cool_down(repository, params, nodes.require_node(repository, node), now, is_dropped=True)
    plan_tasks(repository, params)


def end_tasks(repository: Repository) -> None:
    """The pool has ended: what nobody has begun is not begun any more."""
    for task in repository.list_tasks(TaskState.PENDING):
        task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)


def require_lease(repository: Repository, *, node: str, task: TaskId, lease: LeaseId, now: float) -> TaskRow:
    """The task that `node` holds by `lease`; raise ProtocolError "unknown_task", "not_your_task", "lease_expired"."""
    row = repository.get_task(task)
    if row is None:
        raise ProtocolError("unknown_task", f"there is no task {task}", status=404)
    if row.node != node:
        raise ProtocolError("not_your_task", f"task {task} is not leased to {node}", status=403)
    if row.lease != lease or row.state is not TaskState.ASSIGNED or row.expires_at <= now:
        raise ProtocolError("lease_expired", f"lease {lease} of task {task} is over; claim another task", status=409)
    return row
