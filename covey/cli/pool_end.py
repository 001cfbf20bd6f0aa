"""`covey pool end` and `covey pool refund`: end a pool for good, and take back its escrow and its bonds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli import waiting
from covey.cli.waiting import Awaited, wait_for
from covey.console import options
from covey.console.options import DeploymentFile, FolderSource, Json, KeyFile, Pool, Raw, is_terminal, show
from covey.console.terminal import Moment, describe_duration, describe_time
from covey.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from covey.chain.structs import PoolTerms
    from covey.console.account import Account


def pool_end(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    yes: Annotated[bool, typer.Option("--yes", help="End the pool without asking.")] = False,
    refund: Annotated[
        bool,
        typer.Option(
            "--refund",
            help="Take back escrow and bonds as far as the chain allows now; with --wait, all of them. With FOLDER, "
            "this includes the bonds of the validators whose keys are in it.",
        ),
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until the refund opens and, with --refund, until everything is taken back."),
    ] = False,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """End a pool for good. No new work starts, but work with a countersigned receipt is still settled and paid.

    Asks for confirmation, and shows when the escrow can be refunded and how the bonds come out. A pool that has ended
    is not ended again, so the command can be repeated to continue with --refund. Operator or arbiter only.

    Example: `covey pool end mypool --wait --refund`
    """
    from covey.chain.structs import PoolState

    account = options.open_account(deployment, key_file, pool, folder=folder)
    terms, state = account.contracts.pools.get_terms(account.pool), account.contracts.pools.state_of(account.pool)
    transaction = None
    if state is not PoolState.ENDED:
        if not yes:
            _ask_to_end(account, terms)
        transaction = account.send(account.contracts.pools.end_pool(account.pool)).transaction_hash

    def say(line: str) -> None:
        typer.echo(line, err=True)

    validators = _open_validators(account, folder) if refund else []
    operator, left = account.contracts.pools.operator_of(account.pool), None
    if refund and operator != account.wallet.address:
        say(f"escrow and operator's bond stay, because only the operator {operator} can take them back")
    if wait:
        _wait_for_all(account, validators, terms, is_refunded=refund, say=say)
    elif refund:
        left = _take_all(account, validators, say=say)
    show(_describe(account, raw=raw, as_json=as_json) | {"transaction": transaction}, as_json)
    if left is not None:
        typer.echo(f"\n{left}. Run this command again then, or now with --wait.", err=True)
    if not as_json and not refund:
        _explain_bonds(account, folder)


def pool_refund(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Return the uncommitted escrow of a closed pool to its heir, or to the operator. Anyone can run it.

    Example: `covey pool refund mypool`
    """
    from covey.chain.amounts import Amount

    account = options.open_account(deployment, key_file, pool, folder=folder)
    _require_closed(account)
    ledger, unit = account.contracts.ledger, account.get_unit(raw=raw or as_json)
    before = ledger.escrow_of(account.pool)
    entry = account.send(ledger.refund_pool(account.pool))
    left = ledger.escrow_of(account.pool)
    values = {"refunded": Amount(before - left, unit), "escrow": Amount(left, unit)}
    show(values | {"transaction": entry.transaction_hash}, as_json)


def _ask_to_end(account: "Account", terms: "PoolTerms") -> None:
    """Show what ending a pool does, and ask for confirmation.

    Raises OperatorError("not_confirmed") without a terminal.
    """
    from covey.chain.amounts import format_amount

    ledger, unit = account.contracts.ledger, account.get_unit(raw=False)
    question = f"Ending pool {account.pool} cannot be undone"
    if not is_terminal():
        raise OperatorError("not_confirmed", question, fix="Add --yes to end it without confirmation")
    now = account.get_time()
    rows = {
        "escrow": format_amount(ledger.escrow_of(account.pool), unit),
        "owed": f"{format_amount(ledger.owed_of(account.pool), unit)}, which contributors can still claim",
        "refund from": describe_time(now + _count_closing_seconds(terms), now=now),
    }
    for name, text in rows.items():
        typer.echo(f"{name:>18}  {text}", err=True)
    typer.confirm(f"{question}: no new work starts. End it?", abort=True, err=True)


def _count_closing_seconds(terms: "PoolTerms") -> int:
    """Return the seconds from a pool's end until its escrow can be refunded, as PoolRegistry.closesAt computes them."""
    return terms.unbond_window + 4 * (terms.challenge_window + terms.veto_window)


def _require_closed(account: "Account") -> None:
    """Raise OperatorError("pool_not_closed") unless the escrow can be refunded now."""
    from covey.chain.structs import PoolState

    pools = account.contracts.pools
    state, now = pools.state_of(account.pool), account.get_time()
    if state is not PoolState.ENDED:
        wait = describe_duration(_count_closing_seconds(pools.get_terms(account.pool)))
        raise OperatorError(
            "pool_not_closed",
            f"pool {account.pool} has not ended: its state is {state.name.lower()}. Its escrow can be refunded {wait} "
            "after its end",
            fix="End it for good with covey pool end",
        )
    closes_at = pools.closes_at(account.pool)
    if now < closes_at:
        raise OperatorError(
            "pool_not_closed",
            f"the escrow of pool {account.pool} can be refunded from {describe_time(closes_at, now=now)}",
            fix="Run this command again then, or covey pool end --wait --refund now, which waits for it",
        )


def _describe(account: "Account", *, raw: bool, as_json: bool) -> dict[str, Any]:
    from covey.chain.amounts import Amount
    from covey.chain.structs import BondKind

    contracts, pool, unit = account.contracts, account.pool, account.get_unit(raw=raw or as_json)
    operator = contracts.pools.operator_of(pool)
    bond = contracts.stakes.get_balance(pool, BondKind.OPERATOR, operator)
    return {
        "pool": pool,
        "state": contracts.pools.state_of(pool).name.lower(),
        "refund_from": Moment(contracts.pools.closes_at(pool), account.get_time()),
        "escrow": Amount(contracts.ledger.escrow_of(pool), unit),
        "owed": Amount(contracts.ledger.owed_of(pool), unit),
        "operator_bond": Amount(bond.bonded + bond.leaving, unit),
    }


def _explain_bonds(account: "Account", folder: "Path | None") -> None:
    """Say which commands take back escrow and bonds."""
    place = folder or "FOLDER"
    window = describe_duration(account.contracts.pools.get_terms(account.pool).unbond_window)
    lines = (
        f"covey pool end {place} --wait --refund takes back escrow and bonds, and waits for each of them.",
        "By hand: covey pool refund returns the escrow, once the refund opens.",
        "A bond: covey stake unbond AMOUNT --kind operator now, covey stake withdraw --kind operator once the refund "
        "opens.",
        f"A validator's: the same with --kind validator, {window} apart, once all work is judged.",
    )
    typer.echo("\n" + "\n".join(lines))


def _open_validators(account: "Account", folder: "Path | None") -> "list[Account]":
    """Return the accounts of the validators whose keys are in the folder."""
    if folder is None:
        return []
    validators = account.contracts.pools.get_validators(account.pool)
    accounts = [account.with_key(file) for file in sorted(folder.glob("keys/validator-*.key"))]
    return [each for each in accounts if each.wallet.address in validators]


def _take_all(account: "Account", validators: "Sequence[Account]", *, say: "Callable[[str], None]") -> Awaited | None:
    """Take back everything that the chain allows now. Return what has to be waited for, or None if nothing is left.

    The operator's bond is unbonded at once and paid once the pool is closed. Validators must keep their bonds until
    then, because they still judge.
    """
    from covey.chain.amounts import format_amount
    from covey.chain.structs import BondKind
    from covey.local.leaving import take_back

    contracts, pool = account.contracts, account.pool
    closes_at, now, times = contracts.pools.closes_at(pool), account.get_time(), []
    if contracts.pools.operator_of(pool) == account.wallet.address:
        bond = take_back(account, BondKind.OPERATOR, opens_at=closes_at, say=say)
        times += [bond.available_at] if bond.available_at else []
        settlement = contracts.ledger.get_settlement(pool)
        free = settlement.funded - settlement.posted
        if free and now >= closes_at:
            account.send(contracts.ledger.refund_pool(pool))
            say(f"refunded {format_amount(free, account.get_unit(raw=False))} of the escrow")
        elif free:
            times.append(closes_at)
    for each in validators:
        if now >= closes_at:
            bond = take_back(each, BondKind.VALIDATOR, say=say)
            times += [bond.available_at] if bond.available_at else []
        elif contracts.stakes.stake_of(pool, BondKind.VALIDATOR, each.wallet.address):
            times.append(closes_at)
    if not times:
        return None
    return Awaited(what="Take back escrow and bonds", at=min(times), now=now)


def _wait_for_all(
    account: "Account",
    validators: "Sequence[Account]",
    terms: "PoolTerms",
    *,
    is_refunded: bool,
    say: "Callable[[str], None]",
) -> None:
    """Wait until the refund opens and, with `is_refunded`, until escrow and bonds are taken back.

    Raises OperatorError("pool_not_closed") at the deadline: the chain's windows plus `waiting.SPARE_SECONDS`.
    """

    def look() -> Awaited | None:
        if is_refunded:
            return _take_all(account, validators, say=say)
        closes_at, now = account.contracts.pools.closes_at(account.pool), account.get_time()
        return None if now >= closes_at else Awaited(what="The refund opens", at=closes_at, now=now)

    seconds = _count_closing_seconds(terms) + (terms.unbond_window if validators else 0) + waiting.SPARE_SECONDS
    left = wait_for(look, seconds=seconds)
    if left is not None:
        raise OperatorError(
            "pool_not_closed",
            f"pool {account.pool} was not closed in time: {left}",
            fix="Run this command again, which resumes where it was",
        )
