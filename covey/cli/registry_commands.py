"""`covey registry`: pause new work in all pools of a deployment, and allow it again."""

import typer

from covey.console import options
from covey.console.options import DeploymentFile, FolderSource, Json, KeyFile

registry = typer.Typer(help="Pause and resume new work in all pools of a deployment.", no_args_is_help=True)


@registry.command("pause")
def registry_pause(
    deployment: DeploymentFile,
    key_file: KeyFile,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Stop new pools, stake, nodes, funding and policies in all pools. Only the contracts' pauser account can do this.

    Settlement, claims, withdrawals and cases continue. A trainer cannot publish its next policy: it ends with the error
    `publication_refused` and must be restarted after `covey registry unpause`.

    Example: `covey registry pause --deployment net/deployment.json --key-file admin.key`
    """
    account = options.open_account(deployment, key_file, folder=folder)
    entry = account.send(account.contracts.pools.pause())
    options.show({"paused": True, "transaction": entry.transaction_hash}, as_json)


@registry.command("unpause")
def registry_unpause(
    deployment: DeploymentFile,
    key_file: KeyFile,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Allow new pools, stake, nodes, funding and policies again. Only the contracts' pauser account can do this.

    Example: `covey registry unpause --deployment net/deployment.json --key-file admin.key`
    """
    account = options.open_account(deployment, key_file, folder=folder)
    entry = account.send(account.contracts.pools.unpause())
    options.show({"paused": False, "transaction": entry.transaction_hash}, as_json)
