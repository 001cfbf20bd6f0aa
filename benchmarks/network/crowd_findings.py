"""Promises to a crowd, checked after a run: no lease is given twice, no step stands still, no claim waits in vain.

The functions take what clients have seen and what the database says, and use no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import select

from coordinator.db.models import StepRow, SubmissionRow, TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import scheduling
from coordinator.domain.steps import get_oldest_version
from covey.protocol.params import PoolParams
from covey.protocol.status import StepState, TaskState
from covey.protocol.verdict import Decision


class SeenLease(NamedTuple):
    """A lease as its node got it. Example: SeenLease(7, 9, "0x...", 1000.0, 1020.0)."""

    task: int
    lease: int
    node: str
    begins: float
    """Unix seconds at which the node got it."""
    ends: float
    """Unix seconds at which its receipt was countersigned, or else at which it expires."""


def count_double_leases(seen: Sequence[SeenLease], owners: Mapping[int, tuple[int, str]]) -> int:
    """Count leases that two nodes could use.

    These are leases of one task to two nodes that overlap in time, numbers of leases that stand for two tasks or nodes,
    and leases that the database, as `owners` says (task and node by lease), has given to another node.
    """
    count = sum(owners.get(each.lease) != (each.task, each.node) for each in seen)
    meanings: dict[int, set[tuple[int, str]]] = {}
    tasks: dict[int, dict[tuple[int, str], SeenLease]] = {}
    for each in seen:
        meanings.setdefault(each.lease, set()).add((each.task, each.node))
        tasks.setdefault(each.task, {})[each.lease, each.node] = each
    count += sum(len(meaning) - 1 for meaning in meanings.values())
    for leases in tasks.values():
        ordered = sorted(leases.values(), key=lambda each: each.begins)
        count += sum(
            first.node != second.node and second.begins < first.ends
            for index, first in enumerate(ordered)
            for second in ordered[index + 1 :]
        )
    return count


@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """How the batch of one step was filled."""

    step: int
    is_full: bool
    times: tuple[float, ...]
    """Unix seconds at which its submissions were accepted, in ascending order."""
    overdue: int = 0
    """Number of leases for its policy that are still open although they ended."""
    unplanned: int = 0
    """Number of tasks that it lacks and that nobody has planned."""


def find_stalled(
    batches: Sequence[BatchProgress], *, began: float, ended: float, patience: float
) -> list[BatchProgress]:
    """Return the batches that made no progress for more than `patience` seconds while nodes asked for work.

    Nodes ask from `began` to `ended` in Unix seconds. A batch begins when the batch before it was full. A batch with a
    lease that nobody has ended, or with a task that nobody has planned, is stalled as well.
    """
    stalled, since = [], began
    for batch in sorted(batches, key=lambda each: each.step):
        times = [since, *(time for time in batch.times if since < time < ended)]
        if not batch.is_full:
            times.append(ended)
        longest = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
        if longest > patience or batch.overdue or batch.unplanned:
            stalled.append(batch)
        since = times[-1]
    return stalled


def select_waits(
    claims: Sequence[tuple[float, float | None]], dry: Sequence[float], *, ended: float, margin: float
) -> list[float]:
    """Return the seconds that claims waited although there was work all the time.

    `claims` are the times of questions and of orders, and `dry` the ascending times at which no task was pending. A
    claim that has one of these within `margin` seconds of its wait is left out. A claim without an order counts until
    `ended`, unless that was within `margin` seconds.
    """
    waits, index = [], 0
    for asked, got in sorted(claims, key=lambda claim: claim[0]):
        while index < len(dry) and dry[index] < asked - margin:
            index += 1
        until = ended if got is None else got
        is_dry = index < len(dry) and dry[index] <= until + margin
        is_cut_off = got is None and ended - asked < margin
        if not is_dry and not is_cut_off:
            waits.append(until - asked)
    return waits


def read_owners(rows: Repository) -> dict[int, tuple[int, str]]:
    """Return the task and the node of each lease."""
    query = select(TaskRow.lease, TaskRow.id, TaskRow.node).where(TaskRow.lease.is_not(None))
    found = rows.session.execute(query)
    return {lease: (task, node) for lease, task, node in found if lease is not None and node is not None}


def read_progress(rows: Repository, params: PoolParams, *, now: float, grace: float) -> list[BatchProgress]:
    """Return how each step's batch was filled. A lease is overdue once it ended `grace` seconds before `now`."""
    oldest = get_oldest_version(rows, params)
    latest = rows.get_latest_step()
    missing = 0
    if latest is not None and not rows.get_fact("ended"):
        missing = scheduling.count_tasks_to_plan(
            params,
            step=latest.number,
            packed_groups=rows.count_packed_groups(),
            unpacked_groups=rows.sum_unpacked(oldest_version=oldest)[0],
            groups_in_flight=rows.count_groups_in_flight(oldest_version=oldest),
        )
    overdue: dict[int, int] = {}
    for task in rows.list_tasks(TaskState.ASSIGNED):
        if task.expires_at < now - grace:
            overdue[task.policy_version] = overdue.get(task.policy_version, 0) + 1
    return [
        BatchProgress(
            step=step.number,
            is_full=step.state is not StepState.OPEN,
            times=_read_times(rows, step, oldest),
            overdue=overdue.get(step.number, 0),
            unplanned=missing if latest is not None and step.number == latest.number else 0,
        )
        for step in rows.list_steps()
    ]


def _read_times(rows: Repository, step: StepRow, oldest: int) -> tuple[float, ...]:
    """Return when the submissions of a batch were accepted, or of an open batch those that it may still take."""
    query = select(SubmissionRow.decided_at).where(SubmissionRow.decision == Decision.ACCEPT)
    if step.state is StepState.OPEN:
        query = query.where(SubmissionRow.step.is_(None), SubmissionRow.policy_version >= oldest)
    else:
        query = query.where(SubmissionRow.step == step.number)
    return tuple(sorted(each for each in rows.session.scalars(query) if each is not None))
