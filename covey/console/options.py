"""Options that several commands share, and functions that load settings and print values."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from covey.errors import OperatorError

if TYPE_CHECKING:
    from covey.console.account import Account
    from covey.runtime.settings import Settings

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
    bool, typer.Option("--force", help="Create the pool even if its terms deter cheats or validators too little.")
]
Datasets = Annotated[
    list[Path] | None,
    typer.Option("--dataset", help="Folder of a data set that the pool draws its tasks from; may be repeated."),
]
Kind = Annotated[str, typer.Option(help="Kind of bond: contributor, validator or operator.")]


def open_account(deployment: Path, key_file: Path | None, pool: int = 0) -> "Account":
    """Open the account of a command, with the node in COVEY_RPC_URL, or else the deployment's node."""
    from covey.console.account import Account

    return Account(deployment, key_file, pool, rpc_url=os.environ.get("COVEY_RPC_URL"))


def show(values: dict[str, Any], as_json: bool) -> None:
    """Print names and values. In JSON, an `Amount` is a number of smallest units."""
    if as_json:
        typer.echo(json.dumps(values, sort_keys=True, default=lambda amount: amount.value))
        return
    for name, value in values.items():
        text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
        typer.echo(f"{name:>18}  {'none' if text in (None, '') else text}")


def is_terminal() -> bool:
    """Return whether standard input is a terminal, so that the user can be asked."""
    return sys.stdin.isatty()


Folder = Annotated[Path, typer.Argument(help="Folder that `covey init pool` or `covey join` has made.")]


SettingsType = TypeVar("SettingsType", bound="Settings")

ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file with the role's settings.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Setting as NAME=VALUE, which overrides file and environment; may be repeated."),
]


def load_settings(kind: type[SettingsType], file: Path | None, sets: list[str] | None) -> SettingsType:
    """Load settings from the file, the environment (COVEY_NAME) and --set. A later source overrides an earlier one."""
    values: dict[str, str] = {}
    for item in sets or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise OperatorError("bad_settings", f"--set {item} has no value", fix="Write --set NAME=VALUE")
        values[name] = value
    return kind.load(file, values)
