"""`covey pool open`: show the cost, ask for confirmation except on a devnet, and open the pool."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli.pool import ask_for_consent
from covey.console.options import Folder, Force, Json, is_terminal, show
from covey.errors import OperatorError

if TYPE_CHECKING:
    from covey.local.pool_opening import Opening

ESCROW, OPERATOR_BOND = "100", "10"
"""Default amounts, in tokens, of a pool's escrow and of its operator's bond."""


def pool_open(
    folder: Folder,
    escrow: Annotated[
        str,
        typer.Option(help="Escrow that the pool must have afterwards, in tokens. Only the missing amount is added."),
    ] = ESCROW,
    bond: Annotated[
        str,
        typer.Option(help="Bond that the operator must have afterwards, in tokens. Only the missing amount is added."),
    ] = OPERATOR_BOND,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Do not ask for confirmation, and do not check the windows. The command then spends "
            "tokens immediately, even if the pool has the short windows of a test network or one "
            "account in several roles.",
        ),
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Open the pool of a folder on its chain.

    Creates and funds the pool, adds the bonds of operator and validators, and starts the pool. Steps already done are
    skipped, so the command can be repeated after any failure.

    On a chain that is not a devnet, the command refuses the short windows of a test network. It asks before it creates
    a pool in which one account holds several roles, and before it spends anything. --yes skips these three checks.
    Terms that deter cheating too little are refused unless --force is set.

    Example: `covey pool open mypool --escrow 100`
    """
    from covey.console.pool_terms import describe_deterrence, list_useless_terms, require_strong_terms
    from covey.local.folder import has_own_chain
    from covey.local.pool_opening import open_pool, plan_opening

    opening = plan_opening(folder, escrow=escrow, operator_bond=bond)
    if opening.pool is None and not force and not has_own_chain(folder):
        require_strong_terms(folder / "pool.toml", opening.terms, opening.params)
    if not yes and not has_own_chain(folder):
        _require_public_windows(folder / "pool.toml", opening)
        _require_separate_roles(folder / "pool.toml", opening)
        _ask_to_spend(folder, opening)
    if opening.pool is None:
        for useless in list_useless_terms(opening.terms):
            typer.echo(f"warn: {folder / 'pool.toml'}: {useless}", err=True)
        typer.echo(describe_deterrence(opening.terms, opening.params), err=as_json)
    number = open_pool(folder, opening, say=lambda line: typer.echo(line, err=as_json))
    if as_json:
        show({"pool": number}, as_json)


def pool_announce(
    folder: Folder,
    url: Annotated[
        str | None,
        typer.Option(
            help="Base URL of the coordinator. By default that of the folder's settings. An empty one takes the "
            "announcement back."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Announce on chain where a pool is served, so that contributors find it with `covey market`. Operator only.

    `covey pool open` does it, too. Repeat it when the URL has changed.

    Example: `covey pool announce mypool --url https://pool.example`
    """
    from covey.local.pool_opening import announce_pool

    show({"url": announce_pool(folder, url, say=lambda line: typer.echo(line, err=as_json))}, as_json)


def _require_public_windows(file: Path, opening: "Opening") -> None:
    """Raise OperatorError("short_windows") if a new pool has windows that are meant for a test network."""
    from covey.local.plan import find_short_windows

    short = find_short_windows(opening.terms, opening.params)
    if short and opening.pool is None:
        raise OperatorError(
            "short_windows",
            f"some windows in {file} are too short for a public pool, in seconds: {'; '.join(short)}",
            fix=f"Lengthen them in {file}, or accept them with --yes, which also skips all confirmations",
        )


def _require_separate_roles(file: Path, opening: "Opening") -> None:
    """Ask for confirmation if one account of a new pool has several roles that are meant to check each other."""
    from covey.console.pool_terms import list_weaknesses

    weaknesses = list_weaknesses(opening.terms, opening.validators, opening.operator.wallet.address)
    if weaknesses and opening.pool is None:
        ask_for_consent(file, weaknesses)


def _ask_to_spend(folder: Path, opening: "Opening") -> None:
    """Show what each account spends, and ask for confirmation.

    Without a terminal raise OperatorError("not_confirmed").
    """
    from covey.chain.amounts import format_amount, read_unit

    total = sum(opening.costs.values())
    if opening.pool is not None and not total:
        return
    unit = read_unit(opening.token)
    chain_id, cost = opening.operator.deployment.chain_id, format_amount(total, unit)
    question = (
        f"Opening the pool of {folder} on chain {chain_id} spends {cost} of token "
        f"{opening.token.address} and ether for gas"
    )
    if not is_terminal():
        raise OperatorError("not_confirmed", question, fix="Add --yes to spend them without confirmation")
    rows = {"escrow": opening.escrow, "operator's bond": opening.operator_bond}
    rows |= {f"bond of {file.stem}": amount for file, amount in opening.validator_bonds.items()}
    for name, spent in rows.items():
        typer.echo(f"{name:>20}  {format_amount(spent, unit)}", err=True)
    typer.confirm(f"{question}. Open it?", abort=True, err=True)
