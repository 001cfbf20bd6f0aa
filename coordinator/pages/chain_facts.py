"""What pages show of the chain: validators, their bonds and the pool's escrow. It is looked up ahead of viewers."""

from typing import NamedTuple

from coordinator.chain_state import ChainState
from covey.chain.contracts import Contracts
from covey.chain.json_rpc import ChainClient
from covey.chain.node_answers import Block
from covey.chain.structs import PoolTerms
from covey.protocol.ids import Address, PoolId
from covey.protocol.prices import ScheduledPrice

LOOK_SECONDS = 30.0
"""Seconds between two looks at the chain."""


class Money(NamedTuple):
    """What the contract holds for a pool, in the token's smallest unit. Example: Money(escrow=100, promised=20)."""

    escrow: int
    promised: int
    """The part that posted epochs have promised and nobody has claimed."""

    @property
    def free(self) -> int:
        """The part that can still be promised."""
        return max(0, self.escrow - self.promised)


class PoolOnChain:
    """Example: `facts.refresh(); facts.money`."""

    def __init__(self, client: ChainClient, contracts: Contracts, pool: PoolId, terms: PoolTerms) -> None:
        self._client, self._contracts, self._pool = client, contracts, pool
        self._state = ChainState(contracts, pool, validator_bond=terms.validator_bond)
        self._state.prices = contracts.pools.get_prices(pool)  # Pages need them before the first look has ended.
        self.money: Money | None = None
        """None until the chain's node has answered."""
        self.head: Block | None = None
        """Newest block of the last look. None until the chain's node has answered."""

    @property
    def bonds(self) -> dict[Address, int]:
        """Bonds of the validators that the chain names. Empty until the chain's node has answered."""
        return self._state.bonds

    @property
    def validators(self) -> tuple[Address, ...]:
        """Validators that the chain names. Empty until the chain's node has answered."""
        return self._state.validators

    @property
    def prices(self) -> tuple[ScheduledPrice, ...]:
        """All prices of the pool, oldest first."""
        return self._state.prices

    @property
    def active(self) -> frozenset[Address]:
        """Validators whose verdicts the court counts."""
        return self._state.active_validators

    def refresh(self) -> None:
        """Look everything up. Raises TransientError if the chain's node does not answer."""
        ledger = self._contracts.ledger
        self.head = self._client.get_block("latest")
        self.money = Money(ledger.escrow_of(self._pool), ledger.owed_of(self._pool))
        self._state.refresh()
