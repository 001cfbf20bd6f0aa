"""Queries over tasks and their leases.

`coordinator.db.repository.Repository` has them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import CursorResult, and_, case, func, insert, or_, select, update
from sqlalchemy.orm import Session

from coordinator.db.models import NodeRow, SubmissionRow, TaskRow
from coordinator.db.node_queries import cut
from covey.protocol.status import SubmissionState, TaskState


class TaskQueries:
    """The part of the repository that is about what is to be done."""

    session: Session
    kept: set[object]

    def get_task(self, task: int) -> TaskRow | None:
        return self.session.get(TaskRow, task)

    def list_pending(self, versions: Iterable[int], *, limit: int) -> list[tuple[int, int]]:
        """The first tasks of each policy that nobody has, at most `limit` of each, with their policies."""
        found: list[tuple[int, int]] = []
        for version in versions:
            query = select(TaskRow.id).where(TaskRow.state == TaskState.PENDING, TaskRow.policy_version == version)
            found += ((task, version) for task in self.session.scalars(query.order_by(TaskRow.id).limit(limit)))
        return found

    def get_last_task(self) -> int | None:
        """The highest id of a task. None if there is none."""
        return self.session.scalar(select(func.max(TaskRow.id)))

    def number_tasks_from(self, task: int) -> None:
        """Give new tasks ids from this one on. It is above all ids, which SQLite's new ids follow anyway."""
        if self.session.get_bind().dialect.name == "postgresql":
            sequence = func.pg_get_serial_sequence(TaskRow.__tablename__, "id")
            self.session.execute(select(func.setval(sequence, task, False)))

    def has_pending(self) -> bool:
        """Whether there is a task that nobody has."""
        return self.session.scalar(select(TaskRow.id).where(TaskRow.state == TaskState.PENDING).limit(1)) is not None

    def add_tasks(self, count: int, *, policy_version: int, groups: int) -> None:
        """Add tasks that nobody has, by one statement."""
        if count:
            row = {"policy_version": policy_version, "groups": groups, "state": TaskState.PENDING, "offered_until": 0.0}
            self.session.execute(insert(TaskRow), [row] * count)

    def lease_tasks(self, leases: Sequence[Mapping[str, object]]) -> None:
        """Change tasks by one statement. Each mapping contains the id and the same other columns."""
        if leases:
            self.session.execute(update(TaskRow), leases)

    def expire_outdated(self, *, oldest_version: int) -> int:
        """End the tasks of older policies that nobody has. Returns their number."""
        outdated = update(TaskRow).where(TaskRow.state == TaskState.PENDING, TaskRow.policy_version < oldest_version)
        result = cast("CursorResult[Any]", self.session.execute(outdated.values(state=TaskState.EXPIRED)))
        return result.rowcount

    def has_outdated(self, *, oldest_version: int) -> bool:
        """Return whether there is a task of an older policy that nobody has."""
        query = select(TaskRow.id).where(TaskRow.state == TaskState.PENDING, TaskRow.policy_version < oldest_version)
        return self.session.scalar(query.limit(1)) is not None

    def list_overdue(self, now: float, *, silent_since: float, limit: int) -> Sequence[TaskRow]:
        """Leased tasks whose time to collect or to hand in is over, or whose nodes were last heard before a time."""
        silent = select(NodeRow.address).where(NodeRow.address == TaskRow.node, NodeRow.seen_at < silent_since)
        is_over = or_(
            TaskRow.ends_at <= now,
            and_(TaskRow.ends_at.is_(None), TaskRow.offered_until <= now),
            and_(TaskRow.collected_at < silent_since, silent.exists()),
        )
        query = select(TaskRow).where(TaskRow.state == TaskState.ASSIGNED, is_over)
        return self.session.scalars(query.order_by(TaskRow.id).limit(limit)).all()

    def list_leased(self, nodes: Collection[str]) -> Sequence[TaskRow]:
        """Tasks that are leased to some nodes, oldest first."""
        found: list[TaskRow] = []
        for part in cut(nodes):
            query = select(TaskRow).where(TaskRow.state == TaskState.ASSIGNED, TaskRow.node.in_(part))
            found += self.session.scalars(query.order_by(TaskRow.id))
        return found

    def load_tasks(self, tasks: Collection[int]) -> None:
        """Read tasks by one query, so that `get_task` needs none for them in this transaction."""
        for part in cut(tasks):
            self.kept.update(self.session.scalars(select(TaskRow).where(TaskRow.id.in_(part))))

    def list_candidates(
        self, now: float, *, version: int, published: Mapping[int, int], limit: int, lanes: Collection[str] = ("",)
    ) -> Sequence[NodeRow]:
        """Nodes that may be given a task of policy `version` now, in the order of `scheduling.match`.

        Their execution contract is one of `lanes`, and their long polls are open. They are neither suspended nor
        removed nor cooling down. They have collected all leases that they have, and these are fewer than they may have
        (`coordinator.domain.nodes.get_most_leases`). `published` contains the blocks that published the policies.
        Nodes that registered later than the policy that they would use come last. Each condition is part of the
        query, because nodes that cannot be served would otherwise use up its limit.
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
        """Count the leases of nodes that ended uncollected and were offered until `since` or later."""
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
        """Nodes to which a task is leased that they have not collected yet."""
        query = select(TaskRow.node).where(TaskRow.state == TaskState.ASSIGNED, TaskRow.collected_at.is_(None))
        return [node for node in self.session.scalars(query.distinct()) if node is not None]

    def count_groups_in_flight(self, *, oldest_version: int) -> int:
        """Groups of tasks that may still bring accepted work of `oldest_version` or later."""
        open_tasks = select(func.coalesce(func.sum(TaskRow.groups), 0)).where(
            TaskRow.state.in_((TaskState.PENDING, TaskState.ASSIGNED)), TaskRow.policy_version >= oldest_version
        )
        undecided = select(func.coalesce(func.sum(SubmissionRow.groups), 0)).where(
            SubmissionRow.state == SubmissionState.SUBMITTED,
            SubmissionRow.step.is_(None),  # one in a batch is judged again: the batch counts it
            SubmissionRow.policy_version >= oldest_version,
        )
        return int(self.session.scalar(open_tasks) or 0) + int(self.session.scalar(undecided) or 0)
