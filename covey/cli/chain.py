"""Commands that read the chain or send transactions: pools, stake, node registration; what such commands share."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli.roles import worker
from covey.errors import OperatorError

if TYPE_CHECKING:
    from covey.chain.amounts import TokenUnit
    from covey.cli.account import Account

pool = typer.Typer(help="Create, fund, start and end pools.", no_args_is_help=True)
stake = typer.Typer(help="Put up stake and take it back.", no_args_is_help=True)

DeploymentFile = Annotated[
    Path, typer.Option("--deployment", envvar="COVEY_DEPLOYMENT", help="File deployment.json of the network.")
]
KeyFile = Annotated[
    Path,
    typer.Option(
        "--key-file", envvar="COVEY_KEY_FILE", help="File of the key that signs the transaction and pays its gas."
    ),
]
Pool = Annotated[int, typer.Option("--pool", envvar="COVEY_POOL", min=1, help="Number of the pool on chain.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
AmountText = Annotated[
    str, typer.Argument(metavar="AMOUNT", help='Amount in units of the pool\'s token, for example 1.5 or "1.5 CVT".')
]
Raw = Annotated[bool, typer.Option("--raw", help="Read and show amounts in the token's smallest unit.")]
CoordinatorUrl = Annotated[
    str, typer.Option("--coordinator-url", envvar="COVEY_COORDINATOR_URL", help="Base URL of the pool's coordinator.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Create the pool although its terms deter cheats or validators too little.")
]
Datasets = Annotated[
    list[Path] | None,
    typer.Option("--dataset", help="Folder of a data set that the pool draws its tasks from; may be repeated."),
]
Kind = Annotated[str, typer.Option(help="Kind of bond: contributor, validator or operator.")]


def open_account(deployment: Path, key_file: Path | None, pool: int = 0) -> "Account":
    """The account of a command: its node is the one in COVEY_RPC_URL, else the one that the deployment names."""
    from covey.cli.account import Account

    return Account(deployment, key_file, pool, rpc_url=os.environ.get("COVEY_RPC_URL"))


def show(values: dict[str, Any], as_json: bool) -> None:
    """Print names and values; JSON has an `Amount` as a number of smallest units."""
    if as_json:
        typer.echo(json.dumps(values, sort_keys=True, default=lambda amount: amount.value))
        return
    for name, value in values.items():
        told = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
        typer.echo(f"{name:>18}  {'none' if told in (None, '') else told}")


@pool.command("create")
def pool_create(
    file: Annotated[Path, typer.Argument(help="TOML file with the tables [terms] and [params]; see configs/.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    dataset: Datasets = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Name or folder of the model that the pool starts from: its chat template and its end tokens are "
            "pinned where the file does not name them."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Create it although one account holds several offices.")] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Open a pool; the signer becomes its operator.

    Prints what a cheat is expected to lose over what it gains, and refuses terms that deter too little.  A pool with
    prompt_format = "chat" requires --model or chat_template_hash; a chat template that depends on the date or on
    chance is refused.

    Example: `covey pool create pool.toml --model my-chat-model --deployment deployment.json --key-file operator.key`
    """
    from covey.cli.account import read_pool_file
    from covey.cli.pool_terms import describe_deterrence, list_weaknesses, require_offices, require_strong_terms

    account = open_account(deployment, key_file)
    terms, validators, params = read_pool_file(file, account.deployment.token, datasets=dataset or (), model=model)
    require_offices(file, terms, validators, account.wallet.address)
    if not force:
        require_strong_terms(file, terms, params)
    weaknesses = list_weaknesses(terms, validators, account.wallet.address)
    if weaknesses and not yes:
        ask_for_consent(file, weaknesses)
    account.require_nothing_pending()
    entry = account.send(account.contracts.pools.create_pool(terms, validators, params.to_text()))
    values = {"pool": account.contracts.pools.count_pools(), "transaction": entry.transaction_hash}
    show(values | {"deterrence": describe_deterrence(terms, params, as_json=as_json)}, as_json)


def is_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


def ask_for_consent(file: Path, weaknesses: list[str]) -> None:
    """Ask on a terminal whether to create a weak pool; elsewhere raise OperatorError("weak_pool")."""
    if not is_terminal():
        raise OperatorError(
            "weak_pool", f"{file}: {'; '.join(weaknesses)}", fix="Name other accounts, or accept that with --yes"
        )
    for weakness in weaknesses:
        typer.echo(f"{file}: {weakness}", err=True)
    typer.confirm("Create the pool all the same?", abort=True, err=True)


@pool.command("fund")
def pool_fund(
    amount: AmountText,
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Put tokens into a pool's escrow.

    Example: `covey pool fund 100 --deployment net/deployment.json --pool 1 --key-file operator.key`
    """
    from covey.chain.amounts import Amount

    account = open_account(deployment, key_file, pool)
    unit, ledger = account.get_unit(raw=raw), account.contracts.ledger
    paid = account.read_amount(amount, unit, balance=account.token.balance_of(account.wallet.address))
    account.approve(ledger.address, paid)
    entry = account.send(ledger.fund_pool(account.pool, paid))
    escrow = Amount(ledger.escrow_of(account.pool), unit)
    show({"escrow": escrow, "transaction": entry.transaction_hash}, as_json)


@pool.command("start")
def pool_start(deployment: DeploymentFile, key_file: KeyFile, pool: Pool, as_json: Json = False) -> None:
    """Open a pool for work.  Operator only.

    Example: `covey pool start --deployment net/deployment.json --pool 1 --key-file operator.key`
    """
    account = open_account(deployment, key_file, pool)
    entry = account.send(account.contracts.pools.start_pool(account.pool))
    show({"pool": pool, "transaction": entry.transaction_hash}, as_json)


@pool.command("end")
def pool_end(deployment: DeploymentFile, key_file: KeyFile, pool: Pool, as_json: Json = False) -> None:
    """End a pool: no new work starts; what was countersigned is still settled and paid.  Operator or arbiter only.

    Example: `covey pool end --deployment net/deployment.json --pool 1 --key-file operator.key`
    """
    account = open_account(deployment, key_file, pool)
    entry = account.send(account.contracts.pools.end_pool(account.pool))
    show({"pool": pool, "transaction": entry.transaction_hash}, as_json)


@pool.command("show")
def pool_show(deployment: DeploymentFile, pool: Pool, raw: Raw = False, as_json: Json = False) -> None:
    """Show what the chain holds of a pool.

    Example: `covey pool show --deployment net/deployment.json --pool 1`
    """
    from covey.chain.amounts import Amount

    account = open_account(deployment, None, pool)
    pools, unit = account.contracts.pools, account.get_unit(raw=raw or as_json)
    terms = pools.get_terms(account.pool)
    values: dict[str, Any] = {
        "state": pools.state_of(account.pool).name.lower(),
        "operator": pools.operator_of(account.pool),
        "trainer": terms.trainer,
        "params_hash": terms.params_hash,
        "reward_per_unit": Amount(terms.reward_per_unit, unit),
        "min_stake": Amount(terms.min_stake, unit),
        "quorum": terms.quorum,
        "validators": pools.get_validators(account.pool),
        "escrow": Amount(account.contracts.ledger.escrow_of(account.pool), unit),
        "owed": Amount(account.contracts.ledger.owed_of(account.pool), unit),
        "policies": account.contracts.policies.steps_of(account.pool),
        "epochs": account.contracts.ledger.epochs_of(account.pool),
    }
    show(values, as_json)


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
    """Stake in a pool.

    Example: `covey stake add 1.5 --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    account = open_account(deployment, key_file, pool)
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
    """Begin to take stake back; it stays liable until the unbonding window has passed.

    Example: `covey stake unbond 0.5 --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    account = open_account(deployment, key_file, pool)
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
    """Withdraw stake whose unbonding window has passed.

    Example: `covey stake withdraw --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    account = open_account(deployment, key_file, pool)
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
    """Show the signer's stake in a pool.

    Example: `covey stake show --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    from covey.chain.amounts import Amount

    account = open_account(deployment, key_file, pool)
    unit = account.get_unit(raw=raw or as_json)
    unbondings = account.contracts.stakes.unbondings_of(account.pool, account.bond_kind(kind), account.wallet.address)
    values = {
        "account": account.wallet.address,
        "stake": Amount(account.get_stake(kind), unit),
        "unbonding": Amount(sum(u.amount for u in unbondings), unit),
        "locked": Amount(account.contracts.stakes.locked_of(account.pool, account.wallet.address), unit),
    }
    show(values, as_json)


@worker.command("register")
def worker_register(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    node_key_file: Annotated[Path, typer.Option(help="Key file of the node; a new one is made if it does not exist.")],
    as_json: Json = False,
) -> None:
    """Vouch for a node on chain: the contributor (--key-file) and the node both sign.

    Example: `covey worker register --node-key-file node.key --deployment net/deployment.json --pool 1
    --key-file contributor.key`
    """
    from covey.chain.wallet import load_key
    from covey.cli.account import make_key

    account = open_account(deployment, key_file, pool)
    node = load_key(node_key_file) if node_key_file.exists() else make_key(node_key_file)
    entry = account.register_node(node)
    show({"node": node.address, "contributor": account.wallet.address, "transaction": entry.transaction_hash}, as_json)
