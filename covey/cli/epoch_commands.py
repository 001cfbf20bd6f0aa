"""Commands by which validators attest an epoch, and post it without a coordinator."""

from pathlib import Path
from typing import Annotated

import typer

from covey.console import options
from covey.console.options import DeploymentFile, FolderSource, Json, KeyFile, Pool
from covey.errors import OperatorError

EpochPath = Annotated[
    Path, typer.Argument(metavar="FILE", help="File of an epoch that is not posted yet, for example epoch-3.json.")
]


def epoch_sign(
    file: EpochPath,
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    before: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of the newest earlier epoch that stands, for example epoch-2.json."),
    ] = None,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Check the file of the next epoch and sign its header as a validator. Nothing is sent.

    The command checks both roots, the rewards, the number of units and what the epoch continues. Of the fees it checks
    the sum, the limit and that validators get them. It does not check whether the file agrees with the validator's own
    verdicts.

    Example: `covey epoch sign epoch-3.json --before epoch-2.json mypool`
    """
    from covey.console.next_epoch import get_domain, read_next_epoch, require_true
    from covey.protocol.eip712 import sign

    account = options.open_account(deployment, key_file, pool, folder=folder)
    content, header = read_next_epoch(account, file)
    if not account.contracts.pools.is_validator(account.pool, account.wallet.address):
        raise OperatorError(
            "not_a_validator",
            f"account {account.wallet.address} is not a validator of pool {account.pool}",
            fix="Set --key-file to the key of a validator of the pool",
        )
    require_true(account, content, header, before=before)
    values = {"epoch": header.epoch, "header_hash": header.compute_hash(), "validator": account.wallet.address}
    options.show(values | {"signature": sign(header, get_domain(account), account.wallet)}, as_json)


def epoch_post(
    file: EpochPath,
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    attestation: Annotated[
        list[str] | None,
        typer.Option(metavar="SIGNATURE", help="Signature of a validator, as covey epoch sign prints it. Repeatable."),
    ] = None,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Post the next epoch with signatures of validators. While the signer is idle, any account can do this.

    Example: `covey epoch post epoch-3.json --attestation 0x5c...1b --attestation 0x9f...1c mypool`
    """
    from covey.console.next_epoch import read_next_epoch, recover_validators

    account = options.open_account(deployment, key_file, pool, folder=folder)
    _, header = read_next_epoch(account, file)
    attestations = recover_validators(account, header, attestation or [])
    entry = account.send(account.contracts.ledger.post(header, attestations))
    values = {"epoch": header.epoch, "header_hash": header.compute_hash(), "validators": sorted(attestations)}
    options.show(values | {"transaction": entry.transaction_hash}, as_json)
