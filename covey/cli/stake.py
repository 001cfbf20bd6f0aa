"""`covey stake`: put up stake, take it back and show it."""

from typing import TYPE_CHECKING

import typer

from covey.console import options
from covey.console.options import AmountText, DeploymentFile, Json, KeyFile, Kind, Pool, Raw, show

if TYPE_CHECKING:
    from covey.chain.amounts import TokenUnit
    from covey.console.account import Account

stake = typer.Typer(help="Add, unbond, withdraw and show stake.", no_args_is_help=True)


@stake.command("add")
def stake_add(
    amount: AmountText,
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    kind: Kind = "contributor",
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Add stake to a pool for the account that signs.

    Example: `covey stake add 1.5 --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    account = options.open_account(deployment, key_file, pool)
    bond, unit = account.bond_kind(kind), account.get_unit(raw=raw)  # before anything is approved
    paid = account.read_amount(amount, unit, balance=account.token.balance_of(account.wallet.address))
    entry = account.stake(bond, paid)
    _show_stake(account, kind, unit, entry.transaction_hash, as_json)


def _show_stake(account: "Account", kind: str, unit: "TokenUnit", transaction: str | None, as_json: bool) -> None:
    from covey.chain.amounts import Amount

    show({"stake": Amount(account.get_stake(kind), unit), "transaction": transaction}, as_json)


@stake.command("unbond")
def stake_unbond(
    amount: AmountText,
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    kind: Kind = "contributor",
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Start to unbond stake. It can still be slashed until the unbonding window ends.

    Example: `covey stake unbond 0.5 --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    account = options.open_account(deployment, key_file, pool)
    unit = account.get_unit(raw=raw)
    taken = account.read_amount(amount, unit, balance=account.get_stake(kind))
    entry = account.send(account.contracts.stakes.unbond(account.pool, account.bond_kind(kind), taken))
    _show_stake(account, kind, unit, entry.transaction_hash, as_json)


@stake.command("withdraw")
def stake_withdraw(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    kind: Kind = "contributor",
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Withdraw unbonded stake whose unbonding window has ended.

    Example: `covey stake withdraw --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    account = options.open_account(deployment, key_file, pool)
    unit = account.get_unit(raw=raw or as_json)
    entry = account.send(account.contracts.stakes.withdraw(account.pool, account.bond_kind(kind)))
    _show_stake(account, kind, unit, entry.transaction_hash, as_json)


@stake.command("show")
def stake_show(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    kind: Kind = "contributor",
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Show the stake of the account that signs.

    Example: `covey stake show --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    from covey.chain.amounts import Amount

    account = options.open_account(deployment, key_file, pool)
    unit = account.get_unit(raw=raw or as_json)
    unbondings = account.contracts.stakes.unbondings_of(account.pool, account.bond_kind(kind), account.wallet.address)
    values = {
        "account": account.wallet.address,
        "stake": Amount(account.get_stake(kind), unit),
        "unbonding": Amount(sum(u.amount for u in unbondings), unit),
        "locked": Amount(account.contracts.stakes.locked_of(account.pool, account.wallet.address), unit),
    }
    show(values, as_json)
