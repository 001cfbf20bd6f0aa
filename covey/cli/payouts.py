"""Commands that say where rewards go: the payee of a contributor, and credits for payments that the token refused."""

from typing import Annotated

import typer

from covey.console import options
from covey.console.addresses import read_address
from covey.console.options import DeploymentFile, FolderSource, Json, KeyFile, Pool, Raw
from covey.errors import OperatorError


def rewards_payee(
    payee: Annotated[str, typer.Argument(help="Address that receives the rewards. The signer's own undoes it.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Name the account that receives the signer's rewards in a pool, also for omitted work.

    Example: `covey rewards payee ADDRESS myworker`
    """
    account = options.open_account(deployment, key_file, pool, folder=folder)
    ledger, who = account.contracts.ledger, account.wallet.address
    entry = account.send(ledger.set_payee(account.pool, read_address(payee)))
    values = {"contributor": who, "payee": ledger.payee_of(account.pool, who)}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)


def rewards_withdraw_credit(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    to: Annotated[
        str | None, typer.Option("--to", help="Address that receives the tokens. The signer's if this is not set.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--account", help="Account whose credit is sent to itself. By default the signer's.")
    ] = None,
    folder: FolderSource = None,
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Withdraw rewards and stake that the token refused to pay, for example because it was paused.

    An account that the token blocks chooses another one with --to.

    With `--account 0x000000000000000000000000000000000000dEaD` it repeats the burn of slashed stake.

    Example: `covey rewards withdraw-credit myworker --to ADDRESS`
    """
    from covey.chain.amounts import Amount

    account = options.open_account(deployment, key_file, pool, folder=folder)
    who = read_address(owner) if owner else account.wallet.address
    recipient = read_address(to) if to else who
    holders = (account.contracts.ledger, account.contracts.stakes)
    credits = [(holder, holder.credit_of(account.pool, who)) for holder in holders]
    total = sum(credit for _, credit in credits)
    if not total:
        raise OperatorError(
            "nothing_to_withdraw",
            f"account {who} has no credit in pool {account.pool}",
            fix="No action is needed: the token has paid everything",
        )
    entries = [
        account.send(holder.withdraw_credit(account.pool, who, recipient)) for holder, credit in credits if credit
    ]
    paid = Amount(total, account.get_unit(raw=raw or as_json))
    options.show({"paid": paid, "to": recipient, "transactions": [e.transaction_hash for e in entries]}, as_json)
