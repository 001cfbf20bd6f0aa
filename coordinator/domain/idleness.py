"""Describes the health of a node, and explains in one sentence why it gets no task, with the numbers.

The conditions are those of `presence.record_beats` and `tasks.assign_tasks`, in the order in which they decide.
"""

from enum import StrEnum
from typing import NamedTuple

from coordinator.db.models import NodeRow
from coordinator.db.repository import Repository
from coordinator.domain import exact_lane, nodes, pausing
from coordinator.domain.stakes import StakeRule, get_stake, require_stake
from coordinator.domain.steps import get_oldest_version
from covey.errors import CoveyError
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams

UNHEALTHY_SECONDS = 60.0
"""Time in seconds without a heartbeat after which a node is unhealthy. Workers send one at least every 10 seconds."""


class Health(StrEnum):
    """Health of a node, by the time since its last heartbeat or claim."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    """The node was silent for at least `UNHEALTHY_SECONDS`."""
    DEAD = "dead"
    """The node was silent for at least `nodes.INSTANCE_SECONDS`. Its leases end, and another worker may take over."""


class Idleness(NamedTuple):
    """Reason why a node gets no task. Example: Idleness("full", "It holds 1 leases and has room for 1.")."""

    code: str
    """Stable name of the reason, or "next" if the node gets the next task."""
    sentence: str


def compute_health(node: NodeRow, now: float) -> Health:
    """Return the health of a node at a Unix time."""
    silence = now - node.seen_at
    if silence >= nodes.INSTANCE_SECONDS:
        return Health.DEAD
    return Health.UNHEALTHY if silence >= UNHEALTHY_SECONDS else Health.HEALTHY


def explain(repository: Repository, params: PoolParams, node: NodeRow, *, rule: StakeRule, now: float) -> Idleness:
    """Return the first reason why a node gets no task."""
    return (
        _explain_standing(repository, node, rule)
        or _explain_pool(repository)
        or _explain_lane(repository, params, node, now)
        or _explain_node(repository, node, now)
        or _explain_tasks(repository, params, node)
    )


def _explain_standing(repository: Repository, node: NodeRow, rule: StakeRule) -> Idleness | None:
    if node.suspended:
        return Idleness("suspended", f"It is suspended: {node.suspended}.")
    if node.removed:
        return Idleness("removed", "Its contributor has removed it. Register it again with covey worker register.")
    contributor = Address(node.contributor)
    count = repository.count_nodes_of([contributor]).get(contributor, 1)
    try:
        stake = get_stake(repository.get_contributor(contributor))
        require_stake(stake, rule=rule, contributor=contributor, nodes=count)
    except CoveyError as error:
        return Idleness(error.code, error.message[0].upper() + error.message[1:] + ".")
    return None


def _explain_pool(repository: Repository) -> Idleness | None:
    if repository.get_fact("ended"):
        return Idleness("ended", f"The pool ended in block {repository.get_fact('ended')}.")
    if repository.get_latest_step() is None:
        return Idleness("no_policy", "The trainer has not published the first policy yet.")
    pause = pausing.find_pause(repository)
    if pause is not None:
        return Idleness("paused", f"The pool is paused: {pause.reason}.")
    return None


def _explain_lane(repository: Repository, params: PoolParams, node: NodeRow, now: float) -> Idleness | None:
    try:
        exact_lane.require_served(repository, params, node.contract, now=now)
    except CoveyError as error:
        return Idleness(error.code, error.message[0].upper() + error.message[1:] + ".")
    return None


def _explain_node(repository: Repository, node: NodeRow, now: float) -> Idleness | None:
    pause = node.cooldown_until - now
    if pause > 0:
        return Idleness("cooldown", f"It pauses for {pause:.0f} s because it dropped a lease or did not collect one.")
    if node.waiting_until < now:
        silence = now - node.seen_at
        heard = f"was last heard {silence:.0f} s ago" if node.seen_at else "was never heard"
        return Idleness("not_asking", f"It does not ask for a task, and {heard}. It may be busy, or not running.")
    leased = repository.list_leased([node.address])
    if any(task.collected_at is None for task in leased):
        return Idleness("offered", "A lease is offered to it, and its next claim collects it.")
    held, most = len(leased), nodes.get_most_leases(node)
    if held >= node.free_slots:
        return Idleness("full", f"It holds {held} leases and has room for {node.free_slots}.")
    if held >= most:
        return Idleness(
            "newcomer", f"It holds {held} of {most} leases, and may hold one more for every two accepted submissions."
        )
    return None


def _explain_tasks(repository: Repository, params: PoolParams, node: NodeRow) -> Idleness:
    latest = repository.get_latest_step()
    newest, oldest = -1 if latest is None else latest.number, get_oldest_version(repository, params)
    if node.cached_version is not None and node.cached_version < oldest:
        return Idleness("old_policy", f"It has policy {node.cached_version}, and tasks need policy {oldest} or newer.")
    usable = newest if node.cached_version is None else min(node.cached_version, newest)
    if not repository.list_pending(range(oldest, usable + 1), limit=1):
        policies = f"policy {usable}" if oldest == usable else f"policies {oldest} to {usable}"
        return Idleness("no_task", f"All tasks of {policies} are leased or done.")
    return Idleness("next", "It gets the next task.")
