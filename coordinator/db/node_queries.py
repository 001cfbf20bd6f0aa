"""Queries about nodes and contributors.

They are methods of `coordinator.db.repository.Repository`.
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
"""Maximum number of values in one IN list of a query."""


def cut(values: Collection[Key]) -> Iterator[Sequence[Key]]:
    """Yield the sorted values in parts that fit into one IN list."""
    ordered = sorted(values)
    for start in range(0, len(ordered), _PART):
        yield ordered[start : start + _PART]


class NodeStanding(NamedTuple):
    """Public part of a node's row. Example: NodeStanding("0x...", "0x...", "rejected", False, 12)."""

    address: str
    contributor: str
    suspended: str
    removed: bool
    accepted: int

    @property
    def barred(self) -> str:
        """Reason why the node gets no tasks, like `NodeRow.barred`."""
        return self.suspended or ("removed" if self.removed else "")


class NodeQueries:
    """Repository queries about nodes and contributors."""

    session: Session
    kept: set[object]
    """Rows that stay in memory until the transaction ends. Otherwise the session drops rows without references."""

    def get_node(self, address: str) -> NodeRow | None:
        return self.session.get(NodeRow, address)

    def list_nodes(self) -> Sequence[NodeRow]:
        return self.session.scalars(select(NodeRow).order_by(NodeRow.address)).all()

    def list_standings(self) -> list[NodeStanding]:
        """Return the public part of every node's row, by address."""
        columns = (NodeRow.address, NodeRow.contributor, NodeRow.suspended, NodeRow.removed, NodeRow.accepted)
        return [NodeStanding(*row) for row in self.session.execute(select(*columns).order_by(NodeRow.address))]

    def list_nodes_of(self, contributor: str) -> Sequence[NodeRow]:
        return self.session.scalars(
            select(NodeRow).where(NodeRow.contributor == contributor).order_by(NodeRow.address)
        ).all()

    def list_addresses(self) -> Sequence[str]:
        """Return the addresses of all nodes, including suspended and removed ones."""
        return self.session.scalars(select(NodeRow.address)).all()

    def has_node(self, address: str) -> bool:
        """Return whether a node is registered now, or was registered and removed."""
        return self.session.get(NodeRow, address) is not None

    def load_nodes(self, addresses: Collection[str]) -> None:
        """Read nodes and their contributors by two queries, so that this transaction needs no query for each."""
        for part in cut([each for each in addresses if self._find_loaded(NodeRow, each) is None]):
            nodes = self.session.scalars(select(NodeRow).where(NodeRow.address.in_(part))).all()
            owners = {row.contributor for row in nodes if self._find_loaded(ContributorRow, row.contributor) is None}
            self.kept.update(nodes)
            if owners:
                query = select(ContributorRow).where(ContributorRow.address.in_(owners))
                self.kept.update(self.session.scalars(query))

    def update_nodes(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Update nodes by one statement. Each mapping has the node's address and the same other columns."""
        self.session.flush()
        if changes:
            self.session.execute(update(NodeRow), changes)
        for change in changes:
            row = self._find_loaded(NodeRow, change["address"])
            if row is not None:  # The statement does not update rows in memory.
                for name, value in change.items():
                    set_committed_value(row, name, value)

    def _find_loaded(self, kind: type[Row], address: str) -> Row | None:
        """Return a row that this transaction has in memory, or None."""
        return self.session.identity_map.get(self.session.identity_key(kind, address))

    def save_standing(self, nodes: Collection[NodeRow]) -> None:
        """Write changed cooldowns, drops and suspensions by one statement."""
        names = ("address", "cooldown_until", "dropped", "suspended")
        changes = [{name: getattr(node, name) for name in names} for node in nodes]
        for node in nodes:
            self.session.expire(node)  # Otherwise the session would send one statement for each node.
        self.update_nodes(changes)

    def has_waiting(self, now: float) -> bool:
        """Return whether any node has an open long poll."""
        return self.session.scalar(select(NodeRow.address).where(NodeRow.waiting_until >= now).limit(1)) is not None

    def count_nodes_of(self, contributors: Collection[str]) -> dict[str, int]:
        """Return the number of nodes of each contributor, without removed ones."""
        query = select(NodeRow.contributor, func.count()).where(~NodeRow.removed).group_by(NodeRow.contributor)
        counts: dict[str, int] = {}
        for part in cut(contributors):
            counts |= {row[0]: row[1] for row in self.session.execute(query.where(NodeRow.contributor.in_(part)))}
        return counts

    def count_others(self, contributor: str, node: str) -> int:
        """Return the number of a contributor's nodes other than `node`, without removed ones. Loads no rows."""
        others = NodeRow.contributor == contributor, ~NodeRow.removed, NodeRow.address != node
        return self.session.scalar(select(func.count()).where(*others)) or 0

    def get_contributor(self, address: str) -> ContributorRow | None:
        return self.session.get(ContributorRow, address)

    def require_contributor(self, address: str) -> ContributorRow:
        """Return the row of a contributor. Add it if there is none."""
        row = self.get_contributor(address)
        if row is None:
            row = ContributorRow(address=address, strikes=0)
            self.session.add(row)
            self.session.flush()
        return row

    def list_contributors(
        self, addresses: Collection[str], *, after_block: int | None = None, unknown: int = 0
    ) -> Sequence[ContributorRow]:
        """Return the known contributors among `addresses`, and those whose stake was read after a block.

        At most `unknown` further contributors whose stake has not been read yet are included.
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
