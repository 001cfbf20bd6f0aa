"""Takes stake back: unbonds what is bonded, and withdraws what has waited for the unbonding window.

Every step looks at the chain first, so a leave that was interrupted is resumed, and a repeated one does nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from covey.chain.amounts import format_amount
from covey.chain.structs import BondKind
from covey.console.account import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """Stake of one account that is not withdrawn yet. Amounts are in the token's smallest unit.

    Example: Remainder(staked=0, leaving=5, locked=0, available_at=1750000000).
    """

    staked: int
    """Stake that is still bonded."""
    leaving: int
    """Stake that is unbonding."""
    locked: int
    """Stake that open cases lock. Nothing can be withdrawn while it is not 0."""
    available_at: int | None
    """Unix time in seconds when all unbonding stake can be withdrawn. None if none is unbonding."""


def take_back(
    account: Account, kind: BondKind, *, keep: int = 0, opens_at: int = 0, say: Callable[[str], None]
) -> Remainder:
    """Withdraw what can be withdrawn, unbond the rest except `keep`, and return what remains.

    `opens_at` is the Unix time before which the contract pays nothing out, as for an operator's bond.
    """
    stakes, pool, owner = account.contracts.stakes, account.pool, account.wallet.address
    role, unit = kind.name.lower(), account.get_unit(raw=False)
    locked = stakes.locked_of(pool, owner) if kind is BondKind.CONTRIBUTOR else 0
    now = account.get_time()
    matured = sum(each.amount for each in stakes.unbondings_of(pool, kind, owner) if each.available_at <= now)
    if matured and not locked and now >= opens_at:  # first, because the number of unbondings is limited
        account.send(stakes.withdraw(pool, kind))
        say(f"withdrew {format_amount(matured, unit)}, the stake of the {role} {owner}")
    staked = stakes.stake_of(pool, kind, owner)
    if staked > keep:
        account.send(stakes.unbond(pool, kind, staked - keep))
        say(f"unbonding {format_amount(staked - keep, unit)}, the stake of the {role} {owner}")
    unbondings = stakes.unbondings_of(pool, kind, owner)
    return Remainder(
        staked=min(staked, keep),
        leaving=sum(each.amount for each in unbondings),
        locked=locked,
        available_at=max([opens_at, *(each.available_at for each in unbondings)]) if unbondings else None,
    )
