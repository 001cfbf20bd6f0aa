"""Admin commands: the operator's over its pool, the contributor's over its nodes, the arbiter's vetoes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli.pool import pool
from covey.console import options
from covey.console.options import DeploymentFile, Json, KeyFile, Pool, Raw
from covey.errors import OperatorError, ProtocolError
from worker.cli import worker

if TYPE_CHECKING:
    from covey.chain.amounts import TokenUnit
    from covey.chain.structs import Accusation
    from covey.console.account import Account
    from covey.protocol.ids import Address, Hash

case = typer.Typer(help="Show slashing cases, veto them, and bring others.", no_args_is_help=True)
epoch = typer.Typer(help="Disable posted epochs.", no_args_is_help=True)

ReceiptHash = Annotated[
    str, typer.Argument(help="Hash of the receipt that the case is about, as `covey case show` prints it.")
]


def _to_address(text: str) -> "Address":
    from covey.console.addresses import read_address

    return read_address(text)


def _to_hash(text: str) -> "Hash":
    from covey.protocol.ids import Hash, is_hash

    if not is_hash(text):
        raise OperatorError("bad_hash", f"{text} is no hash", fix="Name one as covey case show prints it")
    return Hash(text)


@pool.command("refund")
def pool_refund(
    deployment: DeploymentFile, key_file: KeyFile, pool: Pool, raw: Raw = False, as_json: Json = False
) -> None:
    """Take back what no epoch has promised, once the pool is closed.  Operator only.

    Example: `covey pool refund --deployment net/deployment.json --pool 1 --key-file operator.key`
    """
    from covey.chain.amounts import Amount

    account = options.open_account(deployment, key_file, pool)
    ledger, unit = account.contracts.ledger, account.get_unit(raw=raw or as_json)
    entry = account.send(ledger.refund_pool(account.pool))
    options.show(
        {"escrow": Amount(ledger.escrow_of(account.pool), unit), "transaction": entry.transaction_hash}, as_json
    )


@pool.command("invite")
def pool_invite(
    contributors: Annotated[list[str], typer.Argument(help="Addresses of contributors.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    as_json: Json = False,
) -> None:
    """Let contributors register nodes in a pool that is by invitation only.  Operator only.

    Example: `covey pool invite ADDRESS --deployment net/deployment.json --pool 1 --key-file operator.key`
    """
    invited = [_to_address(text) for text in contributors]
    account = options.open_account(deployment, key_file, pool)
    entry = account.send(account.contracts.nodes.invite(account.pool, invited))
    options.show({"invited": invited, "transaction": entry.transaction_hash}, as_json)


@pool.command("withdraw-invitation")
def pool_withdraw_invitation(
    contributor: Annotated[str, typer.Argument(help="Address of the contributor.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    as_json: Json = False,
) -> None:
    """Let a contributor register no more nodes; its registered nodes stay.  Operator only.

    Example: `covey pool withdraw-invitation ADDRESS --deployment net/deployment.json --pool 1 --key-file operator.key`
    """
    address = _to_address(contributor)
    account = options.open_account(deployment, key_file, pool)
    entry = account.send(account.contracts.nodes.withdraw_invitation(account.pool, address))
    options.show({"contributor": address, "transaction": entry.transaction_hash}, as_json)


@pool.command("replace-validator")
def pool_replace_validator(
    previous: Annotated[str, typer.Argument(help="Address of the validator that loses its power at once.")],
    current: Annotated[
        str, typer.Argument(help="Address of the validator that has power after two unbonding windows.")
    ],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    as_json: Json = False,
) -> None:
    """Replace a validator by another account.  Operator only.

    Example: `covey pool replace-validator OLD NEW --deployment net/deployment.json --pool 1 --key-file operator.key`
    """
    before, after = _to_address(previous), _to_address(current)
    account = options.open_account(deployment, key_file, pool)
    pools = account.contracts.pools
    entry = account.send(pools.replace_validator(account.pool, before, after))
    options.show({"validators": pools.get_validators(account.pool), "transaction": entry.transaction_hash}, as_json)


@worker.command("remove")
def worker_remove(
    node: Annotated[str, typer.Argument(help="Address of the node to remove.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    as_json: Json = False,
) -> None:
    """Remove a node; the contributor stays liable for what it has signed through the unbonding window.

    Example: `covey worker remove ADDRESS --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    removed = _to_address(node)
    account = options.open_account(deployment, key_file, pool)
    entry = account.send(account.contracts.nodes.remove_node(account.pool, removed))
    options.show({"node": removed, "transaction": entry.transaction_hash}, as_json)


@worker.command("rotate")
def worker_rotate(
    node: Annotated[str, typer.Argument(help="Address of the node to replace.")],
    node_key_file: Annotated[
        Path, typer.Option(help="Key file of the new node; a new one is made if it does not exist.")
    ],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    as_json: Json = False,
) -> None:
    """Replace a node by another one, for example after its key leaked; both keys of the contributor's sign.

    The contributor stays liable for what the old node has signed through the unbonding window.

    Example: `covey worker rotate ADDRESS --node-key-file new.key --deployment net/deployment.json --pool 1
    --key-file contributor.key`
    """
    from covey.chain.wallet import load_key
    from covey.console.account import make_key

    previous = _to_address(node)
    account = options.open_account(deployment, key_file, pool)
    wallet = load_key(node_key_file) if node_key_file.exists() else make_key(node_key_file)
    entry = account.rotate_node(previous, wallet)
    options.show({"node": wallet.address, "previous": previous, "transaction": entry.transaction_hash}, as_json)


@case.command("show")
def case_show(deployment: DeploymentFile, pool: Pool, raw: Raw = False, as_json: Json = False) -> None:
    """Show all cases of a pool: who is accused of what, and the state of each.

    Example: `covey case show --deployment net/deployment.json --pool 1`
    """
    account = options.open_account(deployment, None, pool)
    unit = account.get_unit(raw=raw or as_json)
    cases = [_describe_case(account, accusation, unit) for accusation in account.list_accusations()]
    if as_json:
        options.show({"cases": cases}, as_json)
    elif not cases:
        typer.echo(f"pool {pool} has no cases", err=True)
    for values in [] if as_json else cases:
        options.show(values, as_json)
        typer.echo()


def _describe_case(account: "Account", accusation: "Accusation", unit: "TokenUnit") -> dict[str, Any]:
    from covey.chain.amounts import Amount
    from covey.protocol.verdict import Reason

    found = account.contracts.court.get_case(accusation)
    return {
        "receipt_hash": accusation.receipt_hash,
        "node": accusation.node,
        "contributor": accusation.contributor,
        "state": found.state.name.lower(),
        "reason": Reason(found.reason).name.lower(),
        "amount": Amount(found.amount, unit),
        "veto_until": found.veto_until,
    }


def find_accusation(account: "Account", receipt_hash: str) -> "Accusation":
    """The accusation of the case about a receipt; raise OperatorError("bad_hash") or ProtocolError("unknown_case")."""
    wanted = _to_hash(receipt_hash)
    accusation = account.history.find_accusation(wanted)
    if accusation is None:
        raise ProtocolError("unknown_case", f"no case is about the receipt {wanted}", status=404)
    return accusation


@case.command("veto")
def case_veto(
    receipt_hash: ReceiptHash, deployment: DeploymentFile, key_file: KeyFile, pool: Pool, as_json: Json = False
) -> None:
    """End a case in the contributor's favour, within the veto window.  Arbiter only.

    Example: `covey case veto RECEIPT_HASH --deployment net/deployment.json --pool 1 --key-file arbiter.key`
    """
    account = options.open_account(deployment, key_file, pool)
    accusation = find_accusation(account, receipt_hash)
    entry = account.send(account.contracts.court.veto(accusation))
    values = {"receipt_hash": accusation.receipt_hash, "node": accusation.node}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)


@epoch.command("disable")
def epoch_disable(
    number: Annotated[int, typer.Argument(metavar="EPOCH", min=0, help="Number of the first epoch to disable.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    as_json: Json = False,
) -> None:
    """Disable an epoch and all after it within the challenge window; their work goes into later ones.  Arbiter only.

    Example: `covey epoch disable 3 --deployment net/deployment.json --pool 1 --key-file arbiter.key`
    """
    account = options.open_account(deployment, key_file, pool)
    posted = account.history.find_epoch(account.pool, number)
    if posted is None:
        raise ProtocolError("unknown_epoch", f"epoch {number} is not posted", status=404)
    entry = account.send(account.contracts.ledger.disable_epoch(account.pool, posted.record))
    options.show({"epoch": number, "transaction": entry.transaction_hash}, as_json)
