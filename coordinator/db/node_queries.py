"""Queries over nodes and contributors.

`coordinator.db.repository.Repository` has them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from coordinator.db.models import ContributorRow, NodeRow

Key = TypeVar("Key", str, int)
Row = TypeVar("Row", NodeRow, ContributorRow)
_PART = 500
"""Maximum number of values in one list of a query."""


def cut(values: Collection[Key]) -> Iterator[Sequence[Key]]:
    """Yield the values in parts that fit into a query."""
    ordered = sorted(values)
    for start in range(0, len(ordered), _PART):
        yield ordered[start : start + _PART]


class NodeStanding(NamedTuple):
    """What is public of a node. Example: NodeStanding("0x...", "0x...", "rejected", False, 12)."""

    address: str
    contributor: str
    suspended: str
    removed: bool
    accepted: int

    @property
    def barred(self) -> str:
        """Why nothing is assigned to the node, as `NodeRow.barred`."""
        return self.suspended or ("removed" if self.removed else "")


class NodeQueries:
    """The part of the repository that is about who works."""

    session: Session
    kept: set[object]
    """Rows that stay in memory until the transaction ends. The session alone forgets those that nobody refers to."""

    def get_node(self, address: str) -> NodeRow | None:
        return self.session.get(NodeRow, address)

    def list_nodes(self) -> Sequence[NodeRow]:
        return self.session.scalars(select(NodeRow).order_by(NodeRow.address)).all()

    def list_standings(self) -> list[NodeStanding]:
        """What is public of all nodes, by address."""
        columns = (NodeRow.address, NodeRow.contributor, NodeRow.suspended, NodeRow.removed, NodeRow.accepted)
        return [NodeStanding(*row) for row in self.session.execute(select(*columns).order_by(NodeRow.address))]

    def list_nodes_of(self, contributor: str) -> Sequence[NodeRow]:
        return self.session.scalars(
            select(NodeRow).where(NodeRow.contributor == contributor).order_by(NodeRow.address)
        ).all()

    def list_addresses(self) -> Sequence[str]:
        """Addresses of all nodes, including those that are suspended or removed."""
        return self.session.scalars(select(NodeRow.address)).all()

    def has_node(self, address: str) -> bool:
        """Whether a node is registered, or was once."""
        return self.session.get(NodeRow, address) is not None

    def load_nodes(self, addresses: Collection[str]) -> None:
        """Read nodes and their contributors by two queries, so that none is read by itself in this transaction."""
        for part in cut([each for each in addresses if self._find_loaded(NodeRow, each) is None]):
            nodes = self.session.scalars(select(NodeRow).where(NodeRow.address.in_(part))).all()
            owners = {row.contributor for row in nodes if self._find_loaded(ContributorRow, row.contributor) is None}
            self.kept.update(nodes)
            if owners:
                query = select(ContributorRow).where(ContributorRow.address.in_(owners))
                self.kept.update(self.session.scalars(query))

    def update_nodes(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Change nodes by one statement. Each mapping contains the address and the same other columns."""
        self.session.flush()
        if changes:
            self.session.execute(update(NodeRow), changes)
        for change in changes:
            row = self._find_loaded(NodeRow, change["address"])
            if row is not None:  # The statement changes no row in memory.
                for name, value in change.items():
                    set_committed_value(row, name, value)

    def _find_loaded(self, kind: type[Row], address: str) -> Row | None:
        """Return a row that this transaction has in memory."""
        return self.session.identity_map.get(self.session.identity_key(kind, address))

    def save_standing(self, nodes: Collection[NodeRow]) -> None:
        """Write what was changed of cool-downs, drops and suspensions by one statement."""
        names = ("address", "cooldown_until", "dropped", "suspended")
        changes = [{name: getattr(node, name) for name in names} for node in nodes]
        for node in nodes:
            self.session.expire(node)  # Otherwise the session would write each change by itself.
        self.update_nodes(changes)

    def has_waiting(self, now: float) -> bool:
        """Whether the long poll of a node is open."""
        return self.session.scalar(select(NodeRow.address).where(NodeRow.waiting_until >= now).limit(1)) is not None

    def count_nodes_of(self, contributors: Collection[str]) -> dict[str, int]:
        """Count the nodes that each contributor vouches for."""
        query = select(NodeRow.contributor, func.count()).where(~NodeRow.removed).group_by(NodeRow.contributor)
        counts: dict[str, int] = {}
        for part in cut(contributors):
            counts |= {row[0]: row[1] for row in self.session.execute(query.where(NodeRow.contributor.in_(part)))}
        return counts

    def count_others(self, contributor: str, node: str) -> int:
        """Count the nodes that a contributor vouches for without this one, whose rows are not read."""
        others = NodeRow.contributor == contributor, ~NodeRow.removed, NodeRow.address != node
        return self.session.scalar(select(func.count()).where(*others)) or 0

    def get_contributor(self, address: str) -> ContributorRow | None:
        return self.session.get(ContributorRow, address)

    def require_contributor(self, address: str) -> ContributorRow:
        """The row of a contributor, which begins with its first mention."""
        row = self.get_contributor(address)
        if row is None:
            row = ContributorRow(address=address, strikes=0)
            self.session.add(row)
            self.session.flush()
        return row

    def list_contributors(
        self, addresses: Collection[str], *, after_block: int | None = None, unknown: int = 0
    ) -> Sequence[ContributorRow]:
        """Known contributors among `addresses`, and those whose stake was looked up after a block.

        At most `unknown` others whose stake is not looked up yet come with them.
        """
        found = {row.address: row for row in self._load_contributors(addresses)}
        others = [] if after_block is None else [select(ContributorRow).where(ContributorRow.stake_block > after_block)]
        others.append(select(ContributorRow).where(ContributorRow.stake_block.is_(None)).limit(unknown))
        for query in others:
            found |= {row.address: row for row in self.session.scalars(query)}
        return list(found.values())

    def _load_contributors(self, addresses: Collection[str]) -> Iterator[ContributorRow]:
        for part in cut(addresses):
            yield from self.session.scalars(select(ContributorRow).where(ContributorRow.address.in_(part)))
