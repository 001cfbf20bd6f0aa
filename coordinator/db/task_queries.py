"""Queries about tasks and their leases.

They are methods of `coordinator.db.repository.Repository`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import CursorResult, and_, case, func, insert, or_, select, update
from sqlalchemy.orm import Session

from coordinator.db.models import NodeRow, SubmissionRow, TaskRow
from coordinator.db.node_queries import cut
from covey.protocol.status import SubmissionState, TaskState


class TaskQueries:
    """Repository queries about tasks."""

    session: Session
    kept: set[object]

    def get_task(self, task: int) -> TaskRow | None:
        return self.session.get(TaskRow, task)

    def list_pending(self, versions: Iterable[int], *, limit: int) -> list[tuple[int, int]]:
        """Return the oldest pending tasks of each policy version, at most `limit` per version, as (task, version)."""
        found: list[tuple[int, int]] = []
        for version in versions:
            query = select(TaskRow.id).where(TaskRow.state == TaskState.PENDING, TaskRow.policy_version == version)
            found += ((task, version) for task in self.session.scalars(query.order_by(TaskRow.id).limit(limit)))
        return found

    def get_last_task(self) -> int | None:
        """Return the highest id of a task, or None if there are no tasks."""
        return self.session.scalar(select(func.max(TaskRow.id)))

    def number_tasks_from(self, task: int) -> None:
        """Number new tasks from `task` on, which must be above all existing ids.

        SQLite needs nothing for that, because its new ids follow the highest one.
        """
        if self.session.get_bind().dialect.name == "postgresql":
            sequence = func.pg_get_serial_sequence(TaskRow.__tablename__, "id")
            self.session.execute(select(func.setval(sequence, task, False)))

    def has_pending(self) -> bool:
        """Return whether there is a pending task."""
        return self.session.scalar(select(TaskRow.id).where(TaskRow.state == TaskState.PENDING).limit(1)) is not None

    def add_tasks(self, count: int, *, policy_version: int, groups: int) -> None:
        """Add pending tasks by one statement."""
        if count:
            row = {"policy_version": policy_version, "groups": groups, "state": TaskState.PENDING, "offered_until": 0.0}
            self.session.execute(insert(TaskRow), [row] * count)

    def lease_tasks(self, leases: Sequence[Mapping[str, object]]) -> None:
        """Update tasks by one statement. Each mapping has the task's id and the same other columns."""
        if leases:
            self.session.execute(update(TaskRow), leases)

    def expire_outdated(self, *, oldest_version: int) -> int:
        """Expire the pending tasks of policies before `oldest_version`, and return their number."""
        outdated = update(TaskRow).where(TaskRow.state == TaskState.PENDING, TaskRow.policy_version < oldest_version)
        result = cast("CursorResult[Any]", self.session.execute(outdated.values(state=TaskState.EXPIRED)))
        return result.rowcount

    def has_outdated(self, *, oldest_version: int) -> bool:
        """Return whether there is a pending task of a policy before `oldest_version`."""
        query = select(TaskRow.id).where(TaskRow.state == TaskState.PENDING, TaskRow.policy_version < oldest_version)
        return self.session.scalar(query.limit(1)) is not None

    def list_overdue(self, now: float, *, silent_since: float, limit: int) -> Sequence[TaskRow]:
        """Return leased tasks whose lease or offer has ended, or whose node was last heard before `silent_since`."""
        silent = select(NodeRow.address).where(NodeRow.address == TaskRow.node, NodeRow.seen_at < silent_since)
        is_over = or_(
            TaskRow.ends_at <= now,
            and_(TaskRow.ends_at.is_(None), TaskRow.offered_until <= now),
            and_(TaskRow.collected_at < silent_since, silent.exists()),
        )
        query = select(TaskRow).where(TaskRow.state == TaskState.ASSIGNED, is_over)
        return self.session.scalars(query.order_by(TaskRow.id).limit(limit)).all()

    def list_leased(self, nodes: Collection[str]) -> Sequence[TaskRow]:
        """Return the tasks that are leased to some nodes, oldest first."""
        found: list[TaskRow] = []
        for part in cut(nodes):
            query = select(TaskRow).where(TaskRow.state == TaskState.ASSIGNED, TaskRow.node.in_(part))
            found += self.session.scalars(query.order_by(TaskRow.id))
        return found

    def load_tasks(self, tasks: Collection[int]) -> None:
        """Read tasks into memory, so that `get_task` needs no query for each in this transaction."""
        for part in cut(tasks):
            self.kept.update(self.session.scalars(select(TaskRow).where(TaskRow.id.in_(part))))

    def list_candidates(
        self, now: float, *, version: int, published: Mapping[int, int], limit: int, lanes: Collection[str] = ("",)
    ) -> Sequence[NodeRow]:
        """Return nodes that may get a task of policy `version` now, in the order of `scheduling.match`.

        - Their execution contract is one of `lanes`, and their long polls are open.
        - They are not suspended, removed or cooling down.
        - They have collected all their leases, and may hold another one (`coordinator.domain.nodes.get_most_leases`).

        `published` maps policies to the numbers of the blocks that published them. Nodes that registered after the
        policy that they would use come last. Every condition is part of the query, because nodes that cannot be served
        would otherwise use up `limit`.
        """
        held, collected = func.count(TaskRow.id), func.count(TaskRow.collected_at)
        drop_rate = NodeRow.dropped * 1.0 / (NodeRow.accepted + NodeRow.dropped + 1)
        is_leased = and_(TaskRow.node == NodeRow.address, TaskRow.state == TaskState.ASSIGNED)
        used = func.coalesce(NodeRow.cached_version, version)
        block = case(dict(published), value=used, else_=max(published.values()))
        query = (
            select(NodeRow)
            .outerjoin(TaskRow, is_leased)
            .where(
                NodeRow.waiting_until >= now, NodeRow.suspended == "", ~NodeRow.removed, NodeRow.cooldown_until <= now
            )
            .where(NodeRow.contract.in_(lanes), used >= version)
            .group_by(NodeRow.address)
            .having(and_(held == collected, held < NodeRow.free_slots, held < 1 + NodeRow.accepted // 2))
            .order_by(
                case((block > NodeRow.registered_block, 0), else_=1),
                drop_rate,
                func.coalesce(NodeRow.cached_version, 0).desc(),
                NodeRow.address,
            )
        )
        return self.session.scalars(query.limit(limit)).all()

    def count_uncollected(self, nodes: Collection[str], *, since: float) -> dict[str, int]:
        """Return the number of each node's leases that expired uncollected and were offered until `since` or later."""
        query = select(TaskRow.node, func.count()).group_by(TaskRow.node)
        query = query.where(
            TaskRow.state == TaskState.EXPIRED, TaskRow.collected_at.is_(None), TaskRow.offered_until >= since
        )
        counts: dict[str, int] = {}
        for part in cut(nodes):
            counts |= {row[0]: row[1] for row in self.session.execute(query.where(TaskRow.node.in_(part))) if row[0]}
        return counts

    def list_tasks(self, *states: TaskState) -> Sequence[TaskRow]:
        return self.session.scalars(select(TaskRow).where(TaskRow.state.in_(states)).order_by(TaskRow.id)).all()

    def list_offered_nodes(self) -> Sequence[str]:
        """Return the nodes that have a lease and have not collected it yet."""
        query = select(TaskRow.node).where(TaskRow.state == TaskState.ASSIGNED, TaskRow.collected_at.is_(None))
        return [node for node in self.session.scalars(query.distinct()) if node is not None]

    def count_groups_in_flight(self, *, oldest_version: int) -> int:
        """Return the number of groups, of `oldest_version` or later, in open tasks and undecided submissions."""
        open_tasks = select(func.coalesce(func.sum(TaskRow.groups), 0)).where(
            TaskRow.state.in_((TaskState.PENDING, TaskState.ASSIGNED)), TaskRow.policy_version >= oldest_version
        )
        undecided = select(func.coalesce(func.sum(SubmissionRow.groups), 0)).where(
            SubmissionRow.state == SubmissionState.SUBMITTED,
            SubmissionRow.step.is_(None),  # A submission in a batch is judged again. Its batch counts it already.
            SubmissionRow.policy_version >= oldest_version,
        )
        return int(self.session.scalar(open_tasks) or 0) + int(self.session.scalar(undecided) or 0)
