"""Enrolls the workers of a folder: adds the required stake and registers the nodes.

`plan_enrollment` reads the chain and raises errors before any money moves. `enroll` sends the planned
transactions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from covey.chain.amounts import format_amount, read_unit
from covey.chain.structs import BondKind
from covey.chain.wallet import Wallet
from covey.console.account import Account
from covey.errors import OperatorError


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrollment:
    """Registrations and stake that a folder's workers still lack.

    Example: Enrollment(missing=(node,), backed=3, stake=100).
    """

    missing: tuple[Wallet, ...]
    """Nodes of the folder that are not registered yet."""
    backed: int
    """Number of nodes that the stake must cover: the folder's and those on the contributor's other machines."""
    stake: int
    """Stake to add, in the token's smallest unit."""


def plan_enrollment(account: Account, nodes: Sequence[Wallet]) -> Enrollment:
    """Compare the folder's nodes and the contributor's stake with the pool's requirements.

    Nodes are counted on chain. The coordinator refuses work (`stake_too_low`) until free stake covers all
    registered nodes of the contributor.

    Raises OperatorError("node_taken") if a node is registered for a different contributor.
    Raises OperatorError("pool_not_active"), OperatorError("not_invited") or OperatorError("unfunded") if a planned
    transaction would fail on chain.
    """
    contracts, pool, contributor = account.contracts, account.pool, account.wallet.address
    owners = [contracts.nodes.contributor_of(pool, node.address) for node in nodes]
    for node, owner in zip(nodes, owners, strict=True):
        if owner not in (None, contributor):
            raise OperatorError(
                "node_taken",
                f"the node {node.address} is registered for contributor {owner}, not for {contributor}",
                fix=f"Use the key file of {owner}, or create another folder with covey join",
            )
    backed = {*account.history.list_nodes(pool, contributor), *(node.address for node in nodes)}
    free = contracts.stakes.stake_of(pool, BondKind.CONTRIBUTOR, contributor) - contracts.stakes.locked_of(
        pool, contributor
    )
    plan = Enrollment(
        missing=tuple(node for node, owner in zip(nodes, owners, strict=True) if owner is None),
        backed=len(backed),
        stake=max(0, len(backed) * contracts.pools.get_terms(pool).min_stake - free),
    )
    if plan.missing or plan.stake:
        _require_possible(account, plan)
    return plan


def enroll(account: Account, plan: Enrollment) -> None:
    """Add the planned stake and register the planned nodes, each in its own transaction. Approve the stake first."""
    if plan.stake:
        account.stake(BondKind.CONTRIBUTOR, plan.stake)
    for node in plan.missing:
        account.register_node(node)


def _require_possible(account: Account, plan: Enrollment) -> None:
    """Raise the errors of `plan_enrollment` that concern the pool's state, an invitation or the contributor's money."""
    contracts, pool, contributor = account.contracts, account.pool, account.wallet.address
    if not contracts.pools.is_open(pool):
        raise OperatorError(
            "pool_not_active",
            f"pool {pool} currently accepts neither stake nor nodes",
            fix="Check with covey pool show whether the pool has ended; if not, the contracts are paused",
        )
    is_closed = contracts.pools.get_terms(pool).is_invite_only and not contracts.nodes.is_invited(pool, contributor)
    if plan.missing and is_closed:
        raise OperatorError(
            "not_invited",
            f"contributor {contributor} is not invited to pool {pool}, which is by invitation only",
            fix=f"Ask the pool's operator to run covey pool invite {contributor}",
        )
    balance = account.token.balance_of(contributor)
    needs = ["ether for gas"] if account.client.get_balance(contributor) == 0 else []
    if balance < plan.stake:
        unit = read_unit(account.token)
        needs.append(f"{format_amount(plan.stake, unit)} to stake, but has {format_amount(balance, unit)}")
    if needs:
        raise OperatorError(
            "unfunded",
            f"{contributor} needs {' and '.join(needs)}",
            fix=f"Send {contributor} the missing amounts, and run covey worker enroll again",
        )
