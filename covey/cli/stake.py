"""`covey stake`: put up stake, take it back and show it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from covey.cli.rewards import CREDIT_COMMAND
from covey.console import options
from covey.console.options import AmountText, DeploymentFile, FolderSource, Json, KeyFile, Kind, Pool, Raw, show
from covey.console.terminal import LAST_TIME, Moment, describe_time
from covey.errors import OperatorError

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
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Add stake to a pool for the account that signs.

    Example: `covey stake add 1.5 myworker`
    """
    from covey.chain.amounts import Amount

    account = _open_account(deployment, key_file, pool, folder, kind)
    bond, unit = account.bond_kind(kind), account.get_unit(raw=raw)  # before anything is approved
    paid = account.read_amount(amount, unit, balance=account.token.balance_of(account.wallet.address))
    entry = account.stake(bond, paid)
    staked = Amount(account.get_stake(kind), unit)
    show({"added": Amount(paid, unit), "stake": staked, "transaction": entry.transaction_hash}, as_json)


def _open_account(deployment: Path, key_file: Path, pool: int, folder: Path | None, kind: str) -> "Account":
    """Open the account of a bond.

    Raises OperatorError("no_key") for a validator's bond if only the folder names a key, which is the operator's.
    """
    if kind == "validator" and key_file.name == "operator.key" and folder is not None:
        files = sorted(folder.glob("keys/validator-*.key"))
        if len(files) != 1:
            raise OperatorError(
                "no_key",
                f"it is unknown whose bond is meant, because {folder} has the keys of {len(files)} validators",
                fix=f"Add --key-file, for example --key-file {folder / 'keys' / 'validator-1.key'}",
            )
        key_file = files[0]
    return options.open_account(deployment, key_file, pool, folder=folder)


def _describe(account: "Account", kind: str, unit: "TokenUnit") -> dict[str, Any]:
    """Return bonded and unbonding stake, with the date from which all of it can be withdrawn.

    A credit is stake that the token refused to pay, with the command that withdraws it.
    """
    from covey.chain.amounts import Amount

    stakes, owner, bond = account.contracts.stakes, account.wallet.address, account.bond_kind(kind)
    unbondings = stakes.unbondings_of(account.pool, bond, owner)
    until = max((each.available_at for each in unbondings), default=None)
    credit = stakes.credit_of(account.pool, owner)
    return {
        "stake": Amount(stakes.stake_of(account.pool, bond, owner), unit),
        "unbonding": Amount(sum(each.amount for each in unbondings), unit),
        "withdraw_from": None if until is None else Moment(until, account.get_time()),
        **({"credit": Amount(credit, unit), "credit_command": CREDIT_COMMAND} if credit else {}),
    }


def _require_withdrawable(account: "Account", kind: str, unit: "TokenUnit") -> None:
    """Raise OperatorError("nothing_to_withdraw") if no stake can be withdrawn now.

    The text says why, and until when.
    """
    from covey.chain.amounts import format_amount
    from covey.chain.structs import BondKind

    stakes, owner, bond = account.contracts.stakes, account.wallet.address, account.bond_kind(kind)
    unbondings, now = stakes.unbondings_of(account.pool, bond, owner), account.get_time()
    if bond is BondKind.OPERATOR and now >= account.contracts.pools.closes_at(account.pool):
        return  # The bond of a closed pool needs no unbonding.
    if not unbondings:
        credit = stakes.credit_of(account.pool, owner)
        owed = f", but the token refused to pay {format_amount(credit, unit)}" if credit else ""
        raise OperatorError(
            "nothing_to_withdraw",
            f"no {kind} stake of {owner} is unbonding{owed}",
            fix=f"Run {CREDIT_COMMAND}" if credit else f"Run covey stake unbond AMOUNT --kind {kind} first",
        )
    locked = stakes.locked_of(account.pool, owner) if bond is BondKind.CONTRIBUTOR else 0
    if locked:
        raise OperatorError(
            "nothing_to_withdraw",
            f"open cases lock {format_amount(locked, unit)} of {owner}",
            fix="Wait until they are decided: covey case show prints their deadlines",
        )
    opens_at = account.contracts.pools.closes_at(account.pool) if bond is BondKind.OPERATOR else 0
    until = max(opens_at, min(each.available_at for each in unbondings))
    if until > now:
        first = format_amount(unbondings[0].amount, unit)
        when = describe_time(until, now=now) if until <= LAST_TIME else "a while after the end of the pool"
        raise OperatorError(
            "nothing_to_withdraw",
            f"{first} of {owner} can be withdrawn from {when}",
            fix="Run this command again then" if until <= LAST_TIME else "End the pool with covey pool end",
        )


@stake.command("unbond")
def stake_unbond(
    amount: AmountText,
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    kind: Kind = "contributor",
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Start to unbond stake. It can still be slashed until the unbonding window ends.

    Example: `covey stake unbond 0.5 myworker`
    """
    account = _open_account(deployment, key_file, pool, folder, kind)
    unit = account.get_unit(raw=raw)
    taken = account.read_amount(amount, unit, balance=account.get_stake(kind))
    entry = account.send(account.contracts.stakes.unbond(account.pool, account.bond_kind(kind), taken))
    show(_describe(account, kind, unit) | {"transaction": entry.transaction_hash}, as_json)


@stake.command("withdraw")
def stake_withdraw(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    kind: Kind = "contributor",
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Withdraw unbonded stake whose unbonding window has ended.

    If the token refuses to pay it, it is shown as a credit, with the command that withdraws it later.

    Example: `covey stake withdraw myworker`
    """
    account = _open_account(deployment, key_file, pool, folder, kind)
    unit = account.get_unit(raw=raw or as_json)
    _require_withdrawable(account, kind, unit)
    entry = account.send(account.contracts.stakes.withdraw(account.pool, account.bond_kind(kind)))
    show(_describe(account, kind, unit) | {"transaction": entry.transaction_hash}, as_json)


@stake.command("show")
def stake_show(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    kind: Kind = "contributor",
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Show the stake of the account that signs.

    Example: `covey stake show myworker`
    """
    from covey.chain.amounts import Amount

    account = _open_account(deployment, key_file, pool, folder, kind)
    unit = account.get_unit(raw=raw or as_json)
    locked = Amount(account.contracts.stakes.locked_of(account.pool, account.wallet.address), unit)
    about = {"account": account.wallet.address, "kind": kind}
    show(about | _describe(account, kind, unit) | {"locked": locked}, as_json)
