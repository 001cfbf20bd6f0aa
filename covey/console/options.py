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
    Path,
    typer.Option(
        "--deployment",
        envvar="COVEY_DEPLOYMENT",
        help="File deployment.json with the addresses of Covey's contracts on the chain.",
    ),
]
KeyFile = Annotated[
    Path,
    typer.Option(
        "--key-file",
        envvar="COVEY_KEY_FILE",
        help="File with the key that signs the transaction. Its account pays the gas.",
    ),
]
Pool = Annotated[int, typer.Option("--pool", envvar="COVEY_POOL", min=1, help="On-chain number of the pool.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AmountText = Annotated[str, typer.Argument(metavar="AMOUNT", help='Token amount, for example 1.5 or "1.5 CVT".')]
Raw = Annotated[bool, typer.Option("--raw", help="Read and show token amounts in the token's smallest unit.")]
CoordinatorUrl = Annotated[
    str, typer.Option("--coordinator-url", envvar="COVEY_COORDINATOR_URL", help="Base URL of the pool's coordinator.")
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Create the pool even if its terms deter cheating workers or validators too little."),
]
Datasets = Annotated[
    list[Path] | None,
    typer.Option("--dataset", help="Folder of a data set from which the pool draws tasks; may be repeated."),
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


Folder = Annotated[Path, typer.Argument(help="Folder created by covey init pool or covey join.")]


SettingsType = TypeVar("SettingsType", bound="Settings")

ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file with the settings of the role.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Setting in the form NAME=VALUE. Overrides the file and the environment; may be repeated.",
    ),
]


def load_settings(kind: type[SettingsType], file: Path | None, sets: list[str] | None) -> SettingsType:
    """Load settings from the file, the environment (COVEY_NAME) and --set. A later source overrides an earlier one."""
    values: dict[str, str] = {}
    for item in sets or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise OperatorError(
                "bad_settings", f"the option --set {item} has no value", fix="Write it in the form --set NAME=VALUE"
            )
        values[name] = value
    return kind.load(file, values)
