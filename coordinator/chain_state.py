"""State of the chain that requests need. It is looked up ahead of them, so that no request waits for the chain's node.

`ChainState` contains the validators and the chain's time, in memory. The stake of contributors is in the database,
where all processes see it. `list_touched` says whose stake an event has changed.
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
from covey.runtime.log import get_logger

QUIET_SECONDS = 5.0
"""Maximum time in seconds between two full cycles of the follower."""
OUTDATED_SECONDS = 60.0
"""Age of the validators in seconds from which their use is logged."""
_STAKE_EVENTS = (events.Staked, events.StakeUnbonded, events.StakeWithdrawn, events.StakeSlashed)
_CASE_EVENTS = (
    events.CaseOpened,
    events.CaseExecuted,
    events.EquivocationSlashed,
)
_RELEASING_EVENTS = (events.CaseVetoed, events.CaseLapsed)
"""Events that name the receipt of a case and not its contributor."""


class ChainState:
    """What a process knows of the chain. Example: `chain.refresh(); chain.active_validators`."""

    def __init__(self, contracts: Contracts, pool: PoolId, *, validator_bond: int = 0) -> None:
        """`validator_bond` is the stake of a validator whose verdicts count in court, in the token's smallest unit."""
        self._contracts, self._pool, self._validator_bond = contracts, pool, validator_bond
        self.validators: tuple[Address, ...] = ()
        """All validators that the chain names."""
        self.bonds: dict[Address, int] = {}
        """Bonds of the validators, in the token's smallest unit."""
        self._seated = 0
        """Number of validators that have their seat for long enough."""
        self.active_validators: frozenset[Address] = frozenset()
        """Those whose verdicts the court counts: they have their bond, and their seat for long enough."""
        self._head_time, self._head_seen = 0, 0.0
        self._polled_at: float | None = None
        self._refreshed_at = float("-inf")
        self._is_outdated = False
        """Whether it was logged that the validators are outdated."""
        self.cursor: tuple[SeenBlock, ...] | None = None
        """Cursor of the follower, as it was last read from the database."""
        self._quiet: tuple[int, float] | None = None
        """Count of commits at the last cycle that left nothing to do, and the time of that cycle."""

    @property
    def is_static(self) -> bool:
        """Whether nothing changes until an event says so. A new validator gets its seat by the passing of time."""
        return bool(self.validators) and self._seated == len(self.validators)

    def note_cycle(self, commits: int | None, *, pending: int) -> None:
        """Note that a cycle of the follower began at a count of commits, and how many transactions are not mined."""
        self._quiet = None if commits is None or pending else (commits, time.monotonic())

    def is_quiet(self, commits: int | None) -> bool:
        """Return whether nothing was committed since a cycle that left nothing to do.

        It is never true for longer than QUIET_SECONDS.
        """
        if self._quiet is None:
            return False
        before, at = self._quiet
        return before == commits and time.monotonic() - at < QUIET_SECONDS

    @property
    def has_head(self) -> bool:
        """Whether a block was noted."""
        return self._head_time > 0

    @property
    def head_time(self) -> int:
        """Time of the newest block that was noted, in Unix seconds."""
        return self._head_time

    @property
    def poll_age_s(self) -> float | None:
        """Seconds since the chain's node last answered. None if it has not answered yet."""
        return None if self._polled_at is None else time.monotonic() - self._polled_at

    @property
    def validators_age_s(self) -> float:
        """Seconds since the validators were looked up."""
        return time.monotonic() - self._refreshed_at

    def note_poll(self) -> None:
        """Note that the chain's node has answered."""
        self._polled_at = time.monotonic()

    def note_head(self, block: Block) -> None:
        """Note the newest block."""
        self._head_time, self._head_seen = block.timestamp, time.monotonic()

    def estimate_time(self) -> int:
        """Return what the time of the next block is at least, in Unix seconds. 0 before the first block is seen."""
        return self._head_time and int(self._head_time + time.monotonic() - self._head_seen)

    def refresh(self, *, max_age_s: float = 0.0) -> None:
        """Look validators and bonds up, unless that was done in the last `max_age_s` seconds.

        Raises TransientError if the chain does not answer.
        """
        if self.validators_age_s < max_age_s:
            return
        pools, stakes = self._contracts.pools, self._contracts.stakes
        needed = self._validator_bond
        validators = tuple(pools.get_validators(self._pool))
        seated = [each for each in validators if pools.is_validator(self._pool, each)]
        bonds = {each: stakes.stake_of(self._pool, BondKind.VALIDATOR, each) for each in validators}
        active = frozenset(each for each in seated if bonds[each] >= needed)
        for each in sorted(self.active_validators - active):
            get_logger().error("a validator gets no more turns", validator=each, bond=bonds.get(each), needed=needed)
        self.validators, self.bonds, self.active_validators = validators, bonds, active
        self._seated = len(seated)
        self._refreshed_at, self._is_outdated = time.monotonic(), False

    def report_outdated(self) -> None:
        """Log once that the validators are older than OUTDATED_SECONDS, until they are looked up again."""
        if self.validators_age_s > OUTDATED_SECONDS and not self._is_outdated:
            self._is_outdated = True
            get_logger().warning("validators in use are outdated", seconds=round(self.validators_age_s))

    def list_active(self) -> list[Address]:
        """Return the active validators, in the order in which the chain names them."""
        return [each for each in self.validators if each in self.active_validators]

    def read_stake(self, contributor: Address) -> Stake:
        """Look up the stake of a contributor. Raises TransientError if the chain does not answer."""
        stakes = self._contracts.stakes
        return Stake(
            staked=stakes.stake_of(self._pool, BondKind.CONTRIBUTOR, contributor),
            locked=stakes.locked_of(self._pool, contributor),
        )


def is_about_validators(event: Any, pool: int) -> bool:
    """Return whether an event changes who may judge for a pool: a seat or a bond."""
    if getattr(event, "pool", None) != pool:
        return False
    return isinstance(event, events.ValidatorReplaced) or (
        isinstance(event, _STAKE_EVENTS) and event.kind == BondKind.VALIDATOR
    )


def list_touched(
    found: Iterable[Any], pool: int, find_contributor: Callable[[Hash], Address | None]
) -> dict[Address, int]:
    """Return the contributors whose stake some events of a pool have changed, with the number of the last block.

    `find_contributor` returns the contributor of the case of a receipt, or None if the case is not known.
    """
    touched: dict[Address, int] = {}
    for event in found:
        if getattr(event, "pool", None) != pool:
            continue
        if isinstance(event, _STAKE_EVENTS) and event.kind == BondKind.CONTRIBUTOR:
            touched[event.account] = event.block_number
        elif isinstance(event, _CASE_EVENTS):
            touched[event.contributor] = event.block_number
        elif isinstance(event, _RELEASING_EVENTS):
            contributor = find_contributor(event.receipt_hash)
            if contributor is not None:
                touched[contributor] = event.block_number
    return touched
