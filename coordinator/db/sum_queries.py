"""The table of running sums, which are totals of what each validator measured in the accepted work of a node."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from sqlalchemy import ForeignKey, String, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from coordinator.db.column_types import ValidatorSumsColumn
from coordinator.db.models import Base, NodeRow
from coordinator.db.node_queries import cut
from covey.protocol.running_sums import Sums

MAX_EARLIER = 100
"""Maximum number of nodes whose sums are read to find the initial sums of a new node, or the highest sum."""


class RunningSumsRow(Base):
    """Sums of a node since they were last reset. A node without a row has no sums."""

    __tablename__ = "running_sums"
    node: Mapped[str] = mapped_column(ForeignKey("nodes.address"), primary_key=True)
    submissions: Mapped[int] = mapped_column(default=0)
    """Number of accepted submissions whose sums were added."""
    by_validator: Mapped[Mapping[str, Sums]] = mapped_column(ValidatorSumsColumn, default=dict)
    """Sums by the address of the validator that reported them. An update must replace the whole mapping."""
    above: Mapped[str] = mapped_column(String(16), default="")
    """Statistic whose sum is above its limit, so that all of the node's work is replayed. Empty if none is."""


class RunningSumsQueries:
    """Repository queries about running sums."""

    session: Session

    def get_running_sums(self, node: str) -> RunningSumsRow | None:
        return self.session.get(RunningSumsRow, node)

    def require_running_sums(self, node: str) -> RunningSumsRow:
        """Return the row of a node. Add it if there is none."""
        row = self.get_running_sums(node)
        if row is None:
            row = RunningSumsRow(node=node, submissions=0, by_validator={}, above="")
            self.session.add(row)
        return row

    def load_running_sums(self, nodes: Collection[str]) -> dict[str, RunningSumsRow]:
        """Return the existing rows of some nodes, by node."""
        rows: dict[str, RunningSumsRow] = {}
        for part in cut(nodes):
            query = select(RunningSumsRow).where(RunningSumsRow.node.in_(part))
            rows |= {row.node: row for row in self.session.scalars(query)}
        return rows

    def list_nodes_above(self, nodes: Collection[str]) -> set[str]:
        """Return the nodes among these that have a sum above its limit."""
        query = select(RunningSumsRow.node).where(RunningSumsRow.above != "")
        parts = (self.session.scalars(query.where(RunningSumsRow.node.in_(part))) for part in cut(nodes))
        return set(chain.from_iterable(parts))

    def list_active_above(self) -> Sequence[RunningSumsRow]:
        """Return rows above a limit, at most MAX_EARLIER, except those of suspended and removed nodes."""
        query = select(RunningSumsRow).join(NodeRow).where(RunningSumsRow.above != "", NodeRow.suspended == "")
        return self.session.scalars(query.where(~NodeRow.removed).limit(MAX_EARLIER)).all()

    def list_sums_of(self, contributor: str, *, without: str) -> Sequence[RunningSumsRow]:
        """Return rows of a contributor's nodes, the most recently heard first, except nodes suspended for `without`."""
        query = select(RunningSumsRow).join(NodeRow).where(NodeRow.contributor == contributor)
        query = query.where(NodeRow.suspended != without).order_by(NodeRow.seen_at.desc(), NodeRow.address)
        return self.session.scalars(query.limit(MAX_EARLIER)).all()

    def list_sums_by_contributor(self, *, submissions: int) -> dict[str, list[RunningSumsRow]]:
        """Return rows with at least this number of submissions, by contributor, except suspended and removed nodes."""
        query = select(NodeRow.contributor, RunningSumsRow).join(NodeRow)
        query = query.where(NodeRow.suspended == "", ~NodeRow.removed, RunningSumsRow.submissions >= submissions)
        rows: dict[str, list[RunningSumsRow]] = {}
        for contributor, row in self.session.execute(query):
            rows.setdefault(contributor, []).append(row)
        return rows

    def reset_running_sums(self, nodes: Collection[str]) -> None:
        """Reset the sums of some nodes to 0."""
        for row in self.load_running_sums(nodes).values():
            row.submissions, row.by_validator, row.above = 0, {}, ""
