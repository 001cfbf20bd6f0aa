"""The stake that backs a contributor's nodes and its unseen work, as the chain tells it."""

from coordinator.context import Context
from covey.chain.structs import BondKind
from covey.errors import ProtocolError
from covey.protocol.ids import Address, PoolId


def require_stake(ctx: Context, node: Address, contributor: Address) -> int:
    """The contributor's stake that no case has locked, in the token's smallest unit.

    Raises ProtocolError("stake_too_low") unless it backs every node of the contributor, `node` among them.
    """
    pool, stakes = PoolId(ctx.config.pool), ctx.contracts.stakes
    with ctx.database.read() as repository:
        nodes = {row.address for row in repository.list_nodes_of(contributor) if not row.removed}
    needed = ctx.terms.min_stake * len(nodes | {node})
    staked, locked = stakes.stake_of(pool, BondKind.CONTRIBUTOR, contributor), stakes.locked_of(pool, contributor)
    free = staked - locked  # may be negative: cases lock stake that is leaving, too
    if free < needed:
        missing = needed - free
        message = (
            f"{contributor} has staked {staked}, of which cases lock {locked}; its nodes require {needed} that are "
            "free, in the token's smallest unit. "
            f"Run covey stake add {missing} --raw --pool {pool} with the key of {contributor}"
        )
        raise ProtocolError("stake_too_low", message, status=403)
    return free
