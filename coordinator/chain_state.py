"""State of the chain that requests need. It is read in advance, so that no request waits for the chain's node.

`ChainState` has the validators, the prices and the chain's time in memory. The stake of contributors is in the
database, where all processes see it. `list_touched` finds the contributors whose stake an event has changed.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from coordinator.domain.stakes import Stake
from covey.chain import events
from covey.chain.contracts import Contracts
from covey.chain.follower import SeenBlock
from covey.chain.node_answers import Block
from covey.chain.structs import BondKind
from covey.protocol.ids import Address, Hash, PoolId
from covey.protocol.prices import ScheduledPrice
from covey.runtime.log import get_logger

QUIET_SECONDS = 5.0
"""Maximum time in seconds between two full cycles of the follower."""
OUTDATED_SECONDS = 60.0
"""Age in seconds from which the use of old validators is logged."""
_STAKE_EVENTS = (events.Staked, events.StakeUnbonded, events.StakeWithdrawn, events.StakeSlashed)
_CASE_EVENTS = (
    events.CaseOpened,
    events.CaseExecuted,
    events.EquivocationSlashed,
)
_RELEASING_EVENTS = (events.CaseVetoed, events.CaseLapsed)
"""Events that release the stake of a case. They name its receipt, but not its contributor."""


class ChainState:
    """State of the chain in the memory of one process. Example: `chain.refresh(); chain.active_validators`."""

    def __init__(self, contracts: Contracts, pool: PoolId, *, validator_bond: int = 0) -> None:
        """Create an empty state. `validator_bond` is the bond that the court requires, in the token's smallest unit."""
        self._contracts, self._pool, self._validator_bond = contracts, pool, validator_bond
        self.validators: tuple[Address, ...] = ()
        """All validators of the pool, in the order of the chain."""
        self.prices: tuple[ScheduledPrice, ...] = ()
        """All prices of the pool, oldest first. The last one may not hold yet."""
        self.bonds: dict[Address, int] = {}
        """Bonds of the validators, in the token's smallest unit."""
        self._seated = 0
        """Number of validators whose seat is old enough for the court."""
        self.active_validators: frozenset[Address] = frozenset()
        """Validators whose verdicts the court counts, because they have their bond and their seat is old enough."""
        self._head_time, self._head_seen = 0, 0.0
        self._polled_at: float | None = None
        self._refreshed_at = float("-inf")
        self._is_outdated = False
        """Whether outdated validators have been logged since the last refresh."""
        self.cursor: tuple[SeenBlock, ...] | None = None
        """Cursor of the follower, as last read from the database. None if it was not read yet."""
        self._quiet: tuple[int, float] | None = None
        """Count of commits and time of the last cycle, if it left nothing to do. None otherwise."""

    @property
    def is_static(self) -> bool:
        """Whether validators change only by events. A new validator becomes active by the passing of time."""
        return bool(self.validators) and self._seated == len(self.validators)

    def note_cycle(self, commits: int | None, *, pending: int) -> None:
        """Note the count of commits at the beginning of a cycle, and the number of transactions that are not mined."""
        self._quiet = None if commits is None or pending else (commits, time.monotonic())

    def is_quiet(self, commits: int | None) -> bool:
        """Return whether nothing was committed since a cycle that left nothing to do, less than QUIET_SECONDS ago."""
        if self._quiet is None:
            return False
        before, at = self._quiet
        return before == commits and time.monotonic() - at < QUIET_SECONDS

    @property
    def has_head(self) -> bool:
        """Whether the newest block has been read."""
        return self._head_time > 0

    @property
    def head_time(self) -> int:
        """Time of the newest block that was read, in Unix seconds. 0 if none was read yet."""
        return self._head_time

    @property
    def poll_age_s(self) -> float | None:
        """Time in seconds since the chain's node last answered. None if it has not answered yet."""
        return None if self._polled_at is None else time.monotonic() - self._polled_at

    @property
    def validators_age_s(self) -> float:
        """Time in seconds since the validators were last read. Infinite if they were not read yet."""
        return time.monotonic() - self._refreshed_at

    def note_poll(self) -> None:
        """Note that the chain's node has answered."""
        self._polled_at = time.monotonic()

    def note_head(self, block: Block) -> None:
        """Note the newest block and the time of this read."""
        self._head_time, self._head_seen = block.timestamp, time.monotonic()

    def estimate_time(self) -> int:
        """Return a lower bound for the time of the next block, in Unix seconds. 0 before the first block is read."""
        return self._head_time and int(self._head_time + time.monotonic() - self._head_seen)

    def refresh(self, *, max_age_s: float = 0.0) -> None:
        """Read validators, bonds and prices from the chain, unless they were read in the last `max_age_s` seconds.

        Raises TransientError if the chain does not answer.
        """
        if self.validators_age_s < max_age_s:
            return
        pools, stakes = self._contracts.pools, self._contracts.stakes
        needed = self._validator_bond
        prices, validators = pools.get_prices(self._pool), tuple(pools.get_validators(self._pool))
        seated = [each for each in validators if pools.is_validator(self._pool, each)]
        bonds = {each: stakes.stake_of(self._pool, BondKind.VALIDATOR, each) for each in validators}
        active = frozenset(each for each in seated if bonds[each] >= needed)
        for each in sorted(self.active_validators - active):
            get_logger().error("a validator gets no more turns", validator=each, bond=bonds.get(each), needed=needed)
        self.prices, self.validators, self.bonds, self.active_validators = prices, validators, bonds, active
        self._seated = len(seated)
        self._refreshed_at, self._is_outdated = time.monotonic(), False

    def report_outdated(self) -> None:
        """Log that the validators are older than OUTDATED_SECONDS, once until they are read again."""
        if self.validators_age_s > OUTDATED_SECONDS and not self._is_outdated:
            self._is_outdated = True
            get_logger().warning("validators in use are outdated", seconds=round(self.validators_age_s))

    def list_active(self) -> list[Address]:
        """Return the active validators, in the order of the chain."""
        return [each for each in self.validators if each in self.active_validators]

    def read_stake(self, contributor: Address) -> Stake:
        """Read a contributor's stake and claims from the chain. Raises TransientError if the chain does not answer."""
        stakes = self._contracts.stakes
        return Stake(
            staked=stakes.stake_of(self._pool, BondKind.CONTRIBUTOR, contributor),
            locked=stakes.locked_of(self._pool, contributor),
            claimed=self._contracts.ledger.claimed_of(self._pool, contributor),
        )


def is_about_state(event: Any, pool: int) -> bool:
    """Return whether an event changes a price, or a seat or a bond of a pool's validators."""
    if getattr(event, "pool", None) != pool:
        return False
    return isinstance(event, (events.ValidatorReplaced, events.PriceSet)) or (
        isinstance(event, _STAKE_EVENTS) and event.kind == BondKind.VALIDATOR
    )


def list_touched(
    found: Iterable[Any], pool: int, find_contributor: Callable[[Hash], Address | None]
) -> dict[Address, int]:
    """Return the contributors whose stake or claims the events of a pool have changed, with the last block's number.

    `find_contributor` returns the contributor of a receipt's case, or None if the case is unknown.
    """
    touched: dict[Address, int] = {}
    for event in found:
        if getattr(event, "pool", None) != pool:
            continue
        if isinstance(event, _STAKE_EVENTS) and event.kind == BondKind.CONTRIBUTOR:
            touched[event.account] = event.block_number
        elif isinstance(event, (*_CASE_EVENTS, events.RewardClaimed)):
            touched[event.contributor] = event.block_number
        elif isinstance(event, _RELEASING_EVENTS):
            contributor = find_contributor(event.receipt_hash)
            if contributor is not None:
                touched[contributor] = event.block_number
    return touched
