"""The stake that backs a contributor's nodes and its unaudited work, as last read from the chain."""

from dataclasses import dataclass
from typing import NamedTuple

from coordinator.db.models import ContributorRow
from coordinator.db.repository import Repository
from covey.chain.amounts import SMALLEST, TokenUnit, format_amount
from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Address, PoolId


@dataclass(frozen=True, slots=True, kw_only=True)
class StakeRule:
    """A pool's requirement on stake. Example: StakeRule(pool=1, min_stake=100, unit=TokenUnit(18, "CVT"))."""

    pool: PoolId
    min_stake: int
    """Stake that must back each node, in the token's smallest unit."""
    unit: TokenUnit
    """Unit of amounts in messages: that of the token, or SMALLEST if the token does not report one."""

    @property
    def raw(self) -> str:
        """Option with which commands read amounts in this unit, with a leading space. Empty for the token's unit."""
        return " --raw" if self.unit == SMALLEST else ""


class Stake(NamedTuple):
    """A contributor's stake, in the token's smallest unit. Example: Stake(staked=300, locked=60)."""

    staked: int
    locked: int
    """Stake that open cases lock. It may exceed `staked`, because cases also lock stake that is being withdrawn."""
    claimed: int = 0
    """Total rewards that the contributor has claimed."""

    @property
    def free(self) -> int:
        """Stake that no case has locked. It may be negative."""
        return self.staked - self.locked


def record_stake(
    repository: Repository, contributor: Address, stake: Stake, *, block: int, is_rolled_back: bool = False
) -> None:
    """Record the stake as of a block, unless a newer one is recorded that was not rolled back."""
    row = repository.require_contributor(contributor)
    if row.stake_block is None or row.stake_block <= block or is_rolled_back:
        row.staked, row.locked, row.stake_block = str(stake.staked), str(stake.locked), block
        row.claimed = str(stake.claimed)


def get_stake(row: ContributorRow | None) -> Stake:
    """Return the stake of a contributor. Raises TransientError("stake_unknown") if it has not been read yet."""
    if row is None or row.staked is None or row.locked is None:
        raise TransientError("stake_unknown", "the contributor's stake has not been read from the chain yet")
    return Stake(staked=int(row.staked), locked=int(row.locked), claimed=int(row.claimed or 0))


def require_stake(stake: Stake, *, rule: StakeRule, contributor: Address, nodes: int) -> None:
    """Raise ProtocolError("stake_too_low") unless the free stake of a contributor backs all its nodes."""
    needed = rule.min_stake * nodes
    if stake.free < needed:
        staked, locked, required, missing = (
            format_amount(amount, rule.unit) for amount in (stake.staked, stake.locked, needed, needed - stake.free)
        )
        message = (
            f"{contributor} has staked {staked}, of which cases lock {locked}; its {nodes} node(s) require {required} "
            f'of free stake. Run covey stake add "{missing}"{rule.raw} --kind contributor --pool {rule.pool} with the '
            f"key of {contributor}"
        )
        raise ProtocolError("stake_too_low", message, status=403)
