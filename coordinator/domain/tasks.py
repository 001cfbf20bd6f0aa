"""The life of a task: it is planned, leased, collected, and submitted, returned or expired.

A claim that finds a pending task collects its lease in the transaction that records the claim (`claim_tasks`). Tasks of
a new step, and tasks whose leases have ended, are leased to waiting nodes by a job. Both use `assign_tasks`, so the
rules are the same. No function here sleeps, sends messages or commits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.db.models import NodeRow, TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import exact_lane, nodes, pausing, presence, scheduling
from coordinator.domain.presence import NodeBeat
from coordinator.domain.stakes import StakeRule
from coordinator.domain.steps import get_oldest_version, plan_tasks
from covey.errors import CoveyError, ProtocolError
from covey.protocol.ids import Address, LeaseId, TaskId
from covey.protocol.params import PoolParams
from covey.protocol.status import (
    TASK_MOVES,
    TaskState,
    require_move,
)

MAX_AT_ONCE = 150
"""Maximum number of leases that begin or end in one transaction, so that other writers do not wait long."""
COLLECT_SECONDS = 5.0
"""Time in seconds for which a lease may be collected. An uncollected lease does not count as dropped."""
MISSED_SECONDS = 3600.0
"""Time in seconds for which an uncollected lease lengthens the node's cooldowns after further uncollected ones."""


def assign_tasks(repository: Repository, params: PoolParams, *, now: float, limit: int = MAX_AT_ONCE) -> int:
    """Lease pending tasks to waiting nodes. The policy of a leased task is the newest that its node has.

    A node gets at most one lease, and only after it has collected all earlier ones. Returns the number of leases, which
    is at most `limit`, and 0 while new tasks are paused.
    """
    latest = None if pausing.is_paused(repository) else repository.get_latest_step()
    if latest is None:
        return 0
    versions = range(get_oldest_version(repository, params), latest.number + 1)
    pending = [scheduling.PlannedTask(*each) for each in repository.list_pending(versions, limit=limit)]
    published = dict(repository.list_publications(versions))
    lanes = exact_lane.list_served(repository, params, now=now)
    waiting: dict[str, NodeRow] = {}
    for version in {work.version for work in pending}:  # Nodes that cannot serve a version must not use up its limit.
        found = repository.list_candidates(now, version=version, published=published, limit=limit, lanes=lanes)
        waiting |= {node.address: node for node in found}
    candidates = [
        scheduling.Candidate(
            address=node.address,
            accepted=node.accepted,
            dropped=node.dropped,
            cached_version=None if node.cached_version is None else min(node.cached_version, latest.number),
            first_version=next(
                (version for version, block in published.items() if block > node.registered_block), latest.number + 1
            ),
        )
        for node in waiting.values()
    ]
    pairs = scheduling.match(pending, candidates)[:limit]
    if not pairs:
        return 0
    last = repository.get_fact("lease")
    leases = [
        _build_lease(work, candidate, lease=lease, now=now) for lease, (work, candidate) in enumerate(pairs, last + 1)
    ]
    repository.lease_tasks(leases)
    repository.set_fact("lease", last + len(leases))
    return len(leases)


def _build_lease(
    work: scheduling.PlannedTask, candidate: scheduling.Candidate, *, lease: int, now: float
) -> dict[str, object]:
    """Return the new values of a task's columns when it is leased."""
    return {
        "id": work.task,
        "policy_version": work.version if candidate.cached_version is None else candidate.cached_version,
        "state": require_move(TASK_MOVES, TaskState.PENDING, TaskState.ASSIGNED),
        "node": candidate.address,
        "lease": lease,
        "offered_until": now + COLLECT_SECONDS,
        "collected_at": None,
        "ends_at": None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """A waiting worker's request for its lease. Example: LeaseRequest(node=address, instance="0f...", holding=(7,))."""

    node: Address
    instance: str
    holding: tuple[int, ...] = ()
    """Leases that the worker holds. Leases that it has not collected yet are ignored."""


def claim_tasks(
    repository: Repository, params: PoolParams, signs: Sequence[NodeBeat], *, rule: StakeRule, now: float
) -> list[TaskRow | CoveyError | None]:
    """Record heartbeats and claims, lease pending tasks, and let the claims collect their leases.

    Nodes that have waited since earlier claims get tasks, too, in the order of `assign_tasks`, so a new claim does not
    overtake them. Returns for each heartbeat or claim its error, the collected task, or None. Errors are those of
    `presence.record_beats`.
    """
    results: list[TaskRow | CoveyError | None] = [*presence.record_beats(repository, params, signs, rule=rule, now=now)]
    claims = [index for index, sign in enumerate(signs) if sign.is_claim and results[index] is None]
    if not claims:
        return results
    if repository.has_pending():
        assign_tasks(repository, params, now=now)
    asks = [
        LeaseRequest(node=sign.node, instance=sign.instance, holding=sign.holding)
        for sign in (signs[i] for i in claims)
    ]
    for index, found in zip(claims, collect_tasks(repository, params, asks, now=now), strict=True):
        results[index] = found
    return results


def collect_tasks(
    repository: Repository, params: PoolParams, asks: Sequence[LeaseRequest], *, now: float
) -> list[TaskRow | CoveyError | None]:
    """Collect the leases of nodes. Return for each request the leased task, its error, or None.

    The time of a lease starts when it is collected, and the node's long poll ends. A node may lose a lease that it has
    collected, by a crash or with an HTTP response. Such a lease is returned again, and its time continues. It gets the
    execution contract that the node has now, because a node still holds all leases for which it has signed files. An
    uncollected lease is returned even if the node claims to hold it. Otherwise a node could refuse a lease by guessing
    its number.

    Errors are ProtocolError("unknown_node"), and ProtocolError("another_instance") if another worker with the node's
    key was heard since the request.
    """
    repository.load_nodes({ask.node for ask in asks})
    leased: dict[str | None, list[TaskRow]] = {}
    for task in repository.list_leased({ask.node for ask in asks}):
        leased.setdefault(task.node, []).append(task)
    results: list[TaskRow | CoveyError | None] = []
    served: set[str] = set()
    for ask in asks:
        try:
            node = nodes.require_node(repository, ask.node)
            nodes.require_instance(node, ask.instance, now)
        except CoveyError as error:
            results.append(error)
            continue
        holding = frozenset(ask.holding)
        waiting = (t for t in leased.get(ask.node, ()) if t.collected_at is None or t.lease not in holding)
        found = next(waiting, None)
        if found is not None:
            served.add(ask.node)
            found.contract = node.contract
            if found.collected_at is None:
                found.collected_at, found.ends_at = now, now + params.lease_seconds
        results.append(found)
    repository.update_nodes([{"address": node, "waiting_until": 0.0} for node in sorted(served)])
    return results


def has_overdue(repository: Repository, params: PoolParams, *, now: float) -> bool:
    """Return whether `expire_leases` would end anything."""
    silent_since = presence.find_silent_since(repository, now)
    return repository.has_outdated(oldest_version=get_oldest_version(repository, params)) or bool(
        repository.list_overdue(now, silent_since=silent_since, limit=1)
    )


def expire_leases(repository: Repository, params: PoolParams, *, now: float, limit: int = MAX_AT_ONCE) -> int:
    """End overdue leases, leases of dead nodes, and outdated tasks. Plan new tasks, and start cooldowns of the nodes.

    The cooldown grows with the number of leases that a node did not collect within MISSED_SECONDS. Otherwise a node
    could withhold a task from others for half of the time. Ends at most `limit` leases. Returns the number of ended
    leases and tasks.
    """
    ended = repository.expire_outdated(oldest_version=get_oldest_version(repository, params))
    silent_since = presence.find_silent_since(repository, now)
    overdue = repository.list_overdue(now, silent_since=silent_since, limit=limit)
    names = {task.node for task in overdue if task.node is not None}
    repository.load_nodes(names)
    known = (repository.get_node(name) for name in names)
    rows = {row.address: row for row in known if row is not None}
    uncollected = {task.node for task in overdue if task.node in rows and task.collected_at is None}
    missed = repository.count_uncollected(uncollected, since=now - MISSED_SECONDS)
    for task in overdue:
        task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)
    nodes.cool_down(repository, params, [(rows[task.node], task) for task in overdue if task.node in rows], now)
    for name, count in missed.items():
        rows[name].cooldown_until += count * params.cooldown_seconds
    repository.save_standing(rows.values())
    plan_tasks(repository, params)
    return ended + len(overdue)


def return_task(
    repository: Repository, params: PoolParams, *, node: str, task: TaskId, lease: LeaseId, now: float
) -> None:
    """End a lease that its node gives back, and plan another task. Raises the errors of `require_lease`."""
    row = require_lease(repository, node=node, task=task, lease=lease, now=now)
    row.state = require_move(TASK_MOVES, row.state, TaskState.EXPIRED)
    nodes.cool_down(repository, params, [(nodes.require_node(repository, node), row)], now)
    plan_tasks(repository, params)


def end_tasks(repository: Repository) -> None:
    """Expire all pending tasks, because the pool has ended."""
    for task in repository.list_tasks(TaskState.PENDING):
        task.state = require_move(TASK_MOVES, task.state, TaskState.EXPIRED)


def require_lease(repository: Repository, *, node: str, task: int, lease: int, now: float) -> TaskRow:
    """Return the task that `node` holds with `lease`.

    Raises ProtocolError("unknown_task") if there is no such task, ProtocolError("not_your_task") if it is not leased to
    the node, and ProtocolError("lease_expired") if the lease has ended.
    """
    row = repository.get_task(task)
    if row is None:
        raise ProtocolError("unknown_task", f"task {task} does not exist", status=404)
    if row.node != node:
        raise ProtocolError("not_your_task", f"task {task} is not leased to {node}", status=403)
    if row.lease != lease or row.state is not TaskState.ASSIGNED or row.expires_at <= now:
        raise ProtocolError("lease_expired", f"lease {lease} of task {task} has ended; claim another task", status=409)
    return row
