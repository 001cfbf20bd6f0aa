"""The addresses that may sign requests: the pool's nodes, validators, trainer and operator.

They are kept in memory, so that a request is checked before its body is read.
"""

from enum import Enum, auto

from coordinator.chain_state import ChainState
from coordinator.db.database import Database
from covey.errors import ProtocolError
from covey.protocol.ids import Address


class Role(Enum):
    """Role that a route requires of its caller."""

    ANYBODY = auto()
    """Any key, because an unknown node registers itself."""
    NODE = auto()
    VALIDATOR = auto()
    TRAINER = auto()
    OPERATOR = auto()


class Members:
    """The addresses of each role. Example: `members.add_node(address)`."""

    def __init__(
        self, database: Database, chain: ChainState, *, pool: int, trainer: Address, operators: tuple[Address, ...]
    ) -> None:
        self._database, self._chain, self._pool = database, chain, pool
        self._trainer, self._operators = trainer, operators
        self._nodes: set[str] = set()
        """Lower-case addresses of all nodes that are or were registered."""

    async def load(self) -> None:
        """Read the registered nodes."""
        self._nodes = await self._database.query(lambda rows: {address.lower() for address in rows.list_addresses()})

    def add_node(self, node: Address) -> None:
        """Note that a node has registered."""
        self._nodes.add(node.lower())

    def is_known(self, role: Role, address: str) -> bool:
        """Return whether an address, in any letter case, is known in memory to have a role."""
        if role is Role.NODE:
            return address.lower() in self._nodes
        return role is Role.ANYBODY or self._is_known_on_chain(role, address)

    async def require(self, role: Role, address: str) -> None:
        """Raise ProtocolError unless an address has a role.

        The code is "unknown_node", "not_a_validator", "not_the_trainer" or "not_the_operator". A node that is not in
        memory is looked up in the database, because another process may have registered it.
        """
        if self.is_known(role, address):
            return
        if role is Role.VALIDATOR:
            raise self._refuse_validator(address)
        if role is Role.TRAINER:
            raise ProtocolError("not_the_trainer", f"{address} is not the trainer of pool {self._pool}", status=403)
        if role is Role.OPERATOR:
            raise ProtocolError("not_the_operator", f"{address} does not operate pool {self._pool}", status=403)
        if not await self._database.query(lambda rows: rows.has_node(address)):
            raise ProtocolError("unknown_node", f"{address} is not registered here; register it first", status=403)
        self._nodes.add(address.lower())

    def _refuse_validator(self, address: str) -> ProtocolError:
        bonds = {each.lower(): bond for each, bond in self._chain.bonds.items()}
        bond = bonds.get(address.lower())
        message = f"{address} is not a validator of pool {self._pool}"
        if bond is not None:
            message = (
                f"the verdicts of {address} do not count in pool {self._pool}: its bond is {bond}, and a new validator"
                " must wait for two unbonding windows. Compare with covey pool show --raw, or run covey stake add"
            )
        return ProtocolError("not_a_validator", message, status=403)

    def _is_known_on_chain(self, role: Role, address: str) -> bool:
        named = {
            Role.VALIDATOR: self._chain.active_validators,
            Role.TRAINER: (self._trainer,),
            Role.OPERATOR: self._operators,
        }
        return any(address.lower() == each.lower() for each in named[role])
