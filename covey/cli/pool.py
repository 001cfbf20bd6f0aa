"""`covey pool`: create, fund, start, end and show pools."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.console import options
from covey.console.options import (
    AmountText,
    Datasets,
    DeploymentFile,
    FolderSource,
    Force,
    Json,
    KeyFile,
    Pool,
    Raw,
    is_terminal,
    show,
)
from covey.console.terminal import Moment
from covey.errors import CoveyError, OperatorError

if TYPE_CHECKING:
    from covey.console.account import Account
    from covey.protocol.ids import PoolId

pool = typer.Typer(help="Create, fund, start and end pools.", no_args_is_help=True)


@pool.command("create")
def pool_create(
    file: Annotated[
        Path, typer.Argument(help="TOML file with the tables [terms] and [params]; examples are in configs/.")
    ],
    deployment: DeploymentFile,
    key_file: KeyFile,
    dataset: Datasets = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Name or folder of the model that the pool starts from. Its chat template and end "
            "tokens are written into the parameters if the file does not set them."
        ),
    ] = None,
    signer: Annotated[
        str | None,
        typer.Option(help="Address of the key that signs promises and posts epochs. Without it, that of the operator."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Base URL of the pool's coordinator, to announce on chain, for example https://pool.example. Without "
            "it, `covey market` shows the pool as not announced."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Create the pool without asking even if one account holds several roles.")
    ] = False,
    force: Force = False,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Create a pool, and with --url announce where it is served. The account that signs becomes its operator.

    Prints the worst plan of a cheat and how much it is expected to lose relative to its gain. Refuses terms that deter
    cheating too little. On a chain that is not a devnet, it warns of windows that are too short for a public pool, such
    as a challenge window of less than a day.
    A pool with prompt_format = "chat" requires --model or chat_template_hash. A chat template that depends on the date
    or on random numbers is refused.

    Example: `covey pool create pool.toml --model my-chat-model --deployment deployment.json --key-file operator.key`
    """
    from dataclasses import replace

    from covey.console.account import read_pool_file
    from covey.console.addresses import read_address
    from covey.console.pool_terms import (
        describe_deterrence,
        list_useless_terms,
        list_weaknesses,
        measure_deterrence,
        require_separate_roles,
        require_strong_terms,
    )
    from covey.local.joining import is_devnet
    from covey.local.plan import find_short_windows
    from covey.local.pool_opening import require_announceable

    announced = require_announceable(url or "")
    account = options.open_account(deployment, key_file, folder=folder)
    terms, validators, params = read_pool_file(file, account.deployment.token, datasets=dataset or (), model=model)
    if signer is not None:
        terms = replace(terms, signer=read_address(signer))
    require_separate_roles(file, terms, validators, account.wallet.address)
    if not force:
        require_strong_terms(file, terms, params)
    if not is_devnet(account.deployment):
        for short in find_short_windows(terms, params):
            typer.echo(f"warn: {file}: {short}", err=True)
    for useless in list_useless_terms(terms):
        typer.echo(f"warn: {file}: {useless}", err=True)
    weaknesses = list_weaknesses(terms, validators, account.wallet.address)
    if weaknesses and not yes:
        ask_for_consent(file, weaknesses)
    account.require_nothing_pending()
    entry = account.send(account.contracts.pools.create_pool(terms, validators, params.to_text()))
    number = account.history.find_pool(account.wallet.address, terms.params_hash)
    values: dict[str, Any] = {"pool": number, "transaction": entry.transaction_hash}
    if announced and number is not None:
        values |= _announce(account, number, announced)
    if as_json:
        values["deterrence"] = measure_deterrence(terms, params, detection=1.0)
        values["deterrence_at_half_detection"] = measure_deterrence(terms, params, detection=0.5)
    else:
        values["deterrence"] = describe_deterrence(terms, params)
    show(values, as_json)


def _announce(account: "Account", pool: "PoolId", url: str) -> dict[str, str]:
    """Announce a new pool. If that fails, the pool exists nevertheless, so it is a warning and not an error."""
    try:
        account.send(account.contracts.pools.announce(pool, url))
    except CoveyError as error:
        typer.echo(f"warn: pool {pool} was created, but it was not announced: {error.message}", err=True)
        return {}
    return {"url": url}


def ask_for_consent(file: Path, weaknesses: list[str]) -> None:
    """Ask on a terminal whether to create a pool with weak terms.

    Without a terminal raise OperatorError("weak_pool").
    """
    if not is_terminal():
        raise OperatorError(
            "weak_pool", f"{file}: {'; '.join(weaknesses)}", fix="Use different accounts, or accept this with --yes"
        )
    for weakness in weaknesses:
        typer.echo(f"{file}: {weakness}", err=True)
    typer.confirm("Create the pool anyway?", abort=True, err=True)


@pool.command("fund")
def pool_fund(
    amount: AmountText,
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Add tokens to a pool's escrow, from which rewards are paid.

    Example: `covey pool fund 100 mypool`
    """
    from covey.chain.amounts import Amount

    account = options.open_account(deployment, key_file, pool, folder=folder)
    unit, ledger = account.get_unit(raw=raw), account.contracts.ledger
    paid = account.read_amount(amount, unit, balance=account.token.balance_of(account.wallet.address))
    entry = account.fund(paid)
    escrow = Amount(ledger.escrow_of(account.pool), unit)
    show({"escrow": escrow, "transaction": entry.transaction_hash}, as_json)


@pool.command("start")
def pool_start(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Open a pool for work. Operator only.

    Example: `covey pool start mypool`
    """
    account = options.open_account(deployment, key_file, pool, folder=folder)
    entry = account.send(account.contracts.pools.start_pool(account.pool))
    show({"pool": pool, "transaction": entry.transaction_hash}, as_json)


@pool.command("show")
def pool_show(
    deployment: DeploymentFile,
    pool: Pool,
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Show the state and terms of a pool, as stored on chain.

    Example: `covey pool show mypool`
    """
    from covey.chain.amounts import Amount
    from covey.chain.structs import PoolRole, PoolState
    from covey.protocol.ids import ZERO_ADDRESS

    account = options.open_account(deployment, None, pool, folder=folder)
    pools, unit = account.contracts.pools, account.get_unit(raw=raw or as_json)
    terms = pools.get_terms(account.pool)
    values: dict[str, Any] = {
        "state": pools.state_of(account.pool).name.lower(),
        "operator": pools.operator_of(account.pool),
        "signer": terms.signer,
        "trainer": terms.trainer,
        "arbiter": terms.arbiter,
        "heir": None if terms.heir == ZERO_ADDRESS else terms.heir,
        "params_hash": terms.params_hash,
        "reward_per_million": Amount(terms.reward_per_million, unit),
        "min_stake": Amount(terms.min_stake, unit),
        "quorum": terms.quorum,
        "header_quorum": terms.header_quorum,
        "validators": pools.get_validators(account.pool),
        "escrow": Amount(account.contracts.ledger.escrow_of(account.pool), unit),
        "owed": Amount(account.contracts.ledger.owed_of(account.pool), unit),
        "policies": account.contracts.policies.steps_of(account.pool),
        "epochs": account.contracts.ledger.epochs_of(account.pool),
    }
    newest, now = pools.get_prices(account.pool)[-1], account.get_time()
    if newest.start > now:
        values["next_reward_per_million"] = Amount(newest.reward_per_million, unit)
        values["next_price_from"] = Moment(newest.start, now)
    for role in PoolRole:
        holder = pools.get_role(account.pool, role)
        if holder.next != ZERO_ADDRESS:
            values[f"next_{role.name.lower()}"] = holder.next
            values[f"next_{role.name.lower()}_from"] = Moment(holder.next_from, now)
    if pools.state_of(account.pool) is PoolState.ENDED:
        values["refund_from"] = Moment(pools.closes_at(account.pool), account.get_time())
    show(values, as_json)
