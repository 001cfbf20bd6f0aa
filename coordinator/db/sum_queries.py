"""The table of running sums: what validators measured in the accepted work of a node, by validator."""

from collections.abc import Collection, Mapping

from sqlalchemy import ForeignKey, String, delete
from sqlalchemy.orm import Mapped, Session, mapped_column

from coordinator.db.column_types import ValidatorSumsColumn
from coordinator.db.models import Base
from covey.protocol.running_sums import Sums


class RunningSumsRow(Base):
    """Sums of a node since they last began at 0. A node without a row has none."""

    __tablename__ = "running_sums"
    node: Mapped[str] = mapped_column(ForeignKey("nodes.address"), primary_key=True)
    submissions: Mapped[int] = mapped_column(default=0)
    """Number of accepted submissions whose sums were added."""
    by_validator: Mapped[Mapping[str, Sums]] = mapped_column(ValidatorSumsColumn, default=dict)
    """Sums by the address of the validator that stated them. A change replaces the whole mapping."""
    above: Mapped[str] = mapped_column(String(16), default="")
    """Statistic whose sum is above the limit, so that the node's work is replayed whole. Empty: none."""


class RunningSumsQueries:
    """The part of the repository that is about running sums."""

    session: Session

    def get_running_sums(self, node: str) -> RunningSumsRow | None:
        return self.session.get(RunningSumsRow, node)

    def require_running_sums(self, node: str) -> RunningSumsRow:
        """The row of a node, which begins with its first sums."""
        row = self.get_running_sums(node)
        if row is None:
            row = RunningSumsRow(node=node, submissions=0, by_validator={}, above="")
            self.session.add(row)
        return row

    def forget_running_sums(self, nodes: Collection[str]) -> None:
        """Let the sums of nodes begin at 0."""
        self.session.execute(delete(RunningSumsRow).where(RunningSumsRow.node.in_(nodes)))
