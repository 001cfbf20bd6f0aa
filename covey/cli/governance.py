"""Admin commands of operators for their pools, and of arbiters for cases and epochs."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli.pool import pool
from covey.console import options
from covey.console.options import ArbiterKeyFile, DeploymentFile, FolderOption, FolderSource, Json, KeyFile, Pool, Raw
from covey.console.terminal import Moment
from covey.errors import OperatorError, ProtocolError

if TYPE_CHECKING:
    from covey.chain.amounts import TokenUnit
    from covey.chain.structs import Accusation
    from covey.console.account import Account
    from covey.protocol.ids import Address, Hash

case = typer.Typer(help="Show, open, veto and execute slashing cases.", no_args_is_help=True)
epoch = typer.Typer(help="Sign and post epochs as validators, and disable posted ones.", no_args_is_help=True)

ReceiptHash = Annotated[
    str, typer.Argument(help="Hash of the receipt that the case is about, as shown by covey case show.")
]


def _to_address(text: str) -> "Address":
    from covey.console.addresses import read_address

    return read_address(text)


def _to_hash(text: str) -> "Hash":
    from covey.protocol.ids import Hash, is_hash

    if not is_hash(text):
        raise OperatorError(
            "bad_hash",
            f"{text} is not a hash: 0x and 64 hexadecimal digits are required",
            fix="Copy a hash from the output of covey case show",
        )
    return Hash(text)


@pool.command("invite")
def pool_invite(
    contributors: Annotated[list[str], typer.Argument(help="Addresses of the contributors to invite.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderOption = None,
    as_json: Json = False,
) -> None:
    """Allow contributors to register nodes in an invitation-only pool. Operator only.

    Example: `covey pool invite ADDRESS --folder mypool`
    """
    invited = [_to_address(text) for text in contributors]
    account = options.open_account(deployment, key_file, pool, folder=folder)
    entry = account.send(account.contracts.nodes.invite(account.pool, invited))
    options.show({"invited": invited, "transaction": entry.transaction_hash}, as_json)


@pool.command("withdraw-invitation")
def pool_withdraw_invitation(
    contributor: Annotated[str, typer.Argument(help="Address of the contributor whose invitation is withdrawn.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Stop a contributor from registering more nodes. Nodes already registered remain. Operator only.

    Example: `covey pool withdraw-invitation ADDRESS mypool`
    """
    address = _to_address(contributor)
    account = options.open_account(deployment, key_file, pool, folder=folder)
    entry = account.send(account.contracts.nodes.withdraw_invitation(account.pool, address))
    options.show({"contributor": address, "transaction": entry.transaction_hash}, as_json)


@pool.command("replace-validator")
def pool_replace_validator(
    previous: Annotated[
        str, typer.Argument(help="Address of the validator to remove. It loses its power immediately.")
    ],
    current: Annotated[
        str, typer.Argument(help="Address of the new validator. It can judge only after two unbonding windows.")
    ],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Replace a validator with a different account. Operator only.

    Example: `covey pool replace-validator OLD NEW mypool`
    """
    before, after = _to_address(previous), _to_address(current)
    account = options.open_account(deployment, key_file, pool, folder=folder)
    pools = account.contracts.pools
    entry = account.send(pools.replace_validator(account.pool, before, after))
    options.show({"validators": pools.get_validators(account.pool), "transaction": entry.transaction_hash}, as_json)


@case.command("show")
def case_show(
    deployment: DeploymentFile,
    pool: Pool,
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """List all slashing cases of a pool, with the accused, the accusation and the state.

    Example: `covey case show mypool`
    """
    account = options.open_account(deployment, None, pool, folder=folder)
    unit = account.get_unit(raw=raw or as_json)
    cases = [_describe_case(account, accusation, unit) for accusation in account.history.list_accusations(account.pool)]
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

    record = account.contracts.court.get_case(accusation)
    return {
        "receipt_hash": accusation.receipt_hash,
        "node": accusation.node,
        "contributor": accusation.contributor,
        "state": record.state.name.lower(),
        "reason": Reason(record.reason).name.lower(),
        "amount": Amount(record.amount, unit),
        "veto_until": Moment(record.veto_until, account.get_time()),
    }


def find_accusation(account: "Account", receipt_hash: str) -> "Accusation":
    """Return the accusation of the case about a receipt.

    Raises OperatorError("bad_hash") or ProtocolError("unknown_case").
    """
    wanted = _to_hash(receipt_hash)
    accusation = account.history.find_accusation(wanted)
    if accusation is None:
        raise ProtocolError("unknown_case", f"there is no case about receipt {wanted}", status=404)
    return accusation


@case.command("veto")
def case_veto(
    receipt_hash: ReceiptHash,
    deployment: DeploymentFile,
    key_file: ArbiterKeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Decide a case in the contributor's favour within the veto window, so that nothing is slashed. Arbiter only.

    Example: `covey case veto RECEIPT_HASH mypool`
    """
    account = options.open_account(deployment, key_file, pool, folder=folder)
    accusation = find_accusation(account, receipt_hash)
    entry = account.send(account.contracts.court.veto(accusation))
    values = {"receipt_hash": accusation.receipt_hash, "node": accusation.node}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)


@case.command("execute")
def case_execute(
    receipt_hash: ReceiptHash,
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Execute a case after its veto window, so that the stake is slashed. Any account can.

    Validators do this by themselves. A case that nobody has executed a day after its veto window lapses, and the stake
    is free.

    Example: `covey case execute RECEIPT_HASH mypool`
    """
    from covey.chain.structs import OnChainCaseState

    account = options.open_account(deployment, key_file, pool, folder=folder)
    accusation = find_accusation(account, receipt_hash)
    before, now = account.contracts.court.get_case(accusation), account.get_time()
    if before.state is not OnChainCaseState.LOCKED:
        raise OperatorError(
            "case_closed",
            f"the case about receipt {accusation.receipt_hash} is {before.state.name.lower()}, so nothing is executed",
            fix="Run covey case show for the cases that are locked",
        )
    if now < before.veto_until:
        raise OperatorError(
            "too_early",
            f"the arbiter can veto the case about receipt {accusation.receipt_hash} for {before.veto_until - now} s",
            fix=f"Run the command again after {before.veto_until - now} s",
        )
    entry = account.send(account.contracts.court.execute(accusation))
    state = account.contracts.court.get_case(accusation).state
    values = {"receipt_hash": accusation.receipt_hash, "state": state.name.lower()}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)


@epoch.command("disable")
def epoch_disable(
    number: Annotated[int, typer.Argument(metavar="EPOCH", min=0, help="Number of the first epoch to disable.")],
    deployment: DeploymentFile,
    key_file: ArbiterKeyFile,
    pool: Pool,
    folder: FolderSource = None,
    is_false: Annotated[
        bool,
        typer.Option("--blame-attesters", help="The epoch is false, so validators that attested it can be slashed."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Disable an epoch and all later ones within the challenge window. Their work moves to new epochs. Arbiter only.

    Example: `covey epoch disable 3 mypool --blame-attesters`
    """
    account = options.open_account(deployment, key_file, pool, folder=folder)
    posted = account.history.find_epoch(account.pool, number)
    if posted is None:
        raise ProtocolError("unknown_epoch", f"epoch {number} has not been posted", status=404)
    entry = account.send(account.contracts.ledger.disable_epoch(account.pool, posted.record, is_false=is_false))
    options.show({"epoch": number, "transaction": entry.transaction_hash}, as_json)
