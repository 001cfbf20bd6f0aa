"""Options that several commands share, and functions that load settings and print values."""

import json
import os
import sys
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from covey.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from covey.console.account import Account
    from covey.console.folder_values import FolderValues
    from covey.runtime.settings import Settings


def _read_folder(context: typer.Context, folder: Path | None) -> Path | None:
    """Let a folder supply the options that the command line does not have. Return the folder that is used.

    Without FOLDER, it is the working directory, if that is the folder of a pool or a worker.
    """
    from covey.console.folder_values import has_role_settings, read_folder_values

    chosen = folder or (Path() if has_role_settings(Path()) else None)
    if context.resilient_parsing:
        return None
    if chosen is None:
        context.default_map = {
            each.name: partial(_refuse_missing, each.opts[0])
            for each in context.command.params
            if each.required and each.name in _NAMES
        }
        return None
    is_named, found = folder is not None, cache(lambda: read_folder_values(chosen))
    if is_named:
        found()  # raises for a folder without settings, even if every option is on the command line
    # Typer looks here after the command line and the environment. Values are read when they are needed.
    names = {"storage": "coordinator_url", "rpc": "rpc_url"} | {name: name for name in _NAMES}
    context.default_map = {option: partial(_get_value, found, name) for option, name in names.items()}
    context.meta[_IS_NAMED] = is_named
    return chosen


_NAMES = ("deployment", "pool", "key_file", "coordinator_url", "kind")
"""Options whose values a folder supplies, which are also the names of the values."""
_IS_NAMED = "covey.folder_is_named"


def _refuse_missing(option: str) -> None:
    raise OperatorError(
        "no_folder_named",
        f"{option} is missing, and there is no folder to read it from",
        fix=f"Name the folder of a pool or a worker as FOLDER, or add {option}",
    )


def _get_value(found: "Callable[[], FolderValues]", name: str) -> str | int | None:
    value = getattr(found(), name)
    return str(value) if isinstance(value, Path) else value


def prefer_folder(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Return the folder's value instead of an environment variable's, because the folder was typed just now."""
    source = context.get_parameter_source(parameter.name or "")
    if not context.meta.get(_IS_NAMED) or source is None or source.name != "ENVIRONMENT":
        return value
    found = context.lookup_default(parameter.name or "")
    return value if found is None else found


def _prefer_arbiter(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Return the arbiter's key in the folder instead of the operator's, unless an option names a key."""
    chosen = prefer_folder(context, parameter, value)
    is_own = _IS_NAMED in context.meta and str(chosen) == context.lookup_default("key_file")
    return str(Path(chosen).with_name("arbiter.key")) if is_own else chosen


_FOLDER_HELP = (
    "Folder of a pool or a worker, as created by covey init pool or covey join. It supplies contracts, pool, key and "
    "coordinator where no option names them. By default the working directory, if it is such a folder."
)
FolderSource = Annotated[
    Path | None, typer.Argument(metavar="FOLDER", help=_FOLDER_HELP, is_eager=True, callback=_read_folder)
]
FolderOption = Annotated[Path | None, typer.Option("--folder", help=_FOLDER_HELP, is_eager=True, callback=_read_folder)]
"""The same as an option, for a command that takes any number of arguments."""
DeploymentFile = Annotated[
    Path,
    typer.Option(
        "--deployment",
        envvar="COVEY_DEPLOYMENT",
        callback=prefer_folder,
        help="File deployment.json with the addresses of Covey's contracts on the chain.",
    ),
]
_KEY_HELP = "File with the key that signs the transaction. Its account pays the gas."
KeyFile = Annotated[Path, typer.Option("--key-file", envvar="COVEY_KEY_FILE", callback=prefer_folder, help=_KEY_HELP)]
OptionalKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="COVEY_KEY_FILE",
        callback=prefer_folder,
        help="Key file of the contributor. Required unless --contributor or FOLDER is set.",
    ),
]
ArbiterKeyFile = Annotated[
    Path, typer.Option("--key-file", envvar="COVEY_KEY_FILE", callback=_prefer_arbiter, help=_KEY_HELP)
]
Pool = Annotated[
    int,
    typer.Option("--pool", envvar="COVEY_POOL", min=1, callback=prefer_folder, help="On-chain number of the pool."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AmountText = Annotated[str, typer.Argument(metavar="AMOUNT", help='Token amount, for example 1.5 or "1.5 CVT".')]
Raw = Annotated[bool, typer.Option("--raw", help="Read and show token amounts in the token's smallest unit.")]
_COORDINATOR_HELP = "Base URL of the pool's coordinator, for example http://127.0.0.1:8000."
CoordinatorUrl = Annotated[
    str,
    typer.Option("--coordinator-url", envvar="COVEY_COORDINATOR_URL", callback=prefer_folder, help=_COORDINATOR_HELP),
]
OptionalCoordinatorUrl = Annotated[
    str | None,
    typer.Option("--coordinator-url", envvar="COVEY_COORDINATOR_URL", callback=prefer_folder, help=_COORDINATOR_HELP),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Create the pool even if its terms deter cheating workers or validators too little."),
]
Datasets = Annotated[
    list[Path] | None,
    typer.Option("--dataset", help="Folder of a data set from which the pool draws tasks; may be repeated."),
]
Bandwidth = Annotated[
    float | None,
    typer.Option(
        "--bandwidth",
        min=0.0,
        metavar="MBITS",
        help="Download bandwidth of this machine in Mbit/s, for example 200. Without it, bandwidth is not compared.",
    ),
]
Kind = Annotated[
    str,
    typer.Option(
        help="Kind of bond: contributor, validator or operator. By default that of FOLDER's account, or contributor."
    ),
]


def open_account(deployment: Path, key_file: Path | None, pool: int = 0, *, folder: Path | None = None) -> "Account":
    """Open the account of a command.

    The chain's node is the one in the settings of `folder` if the deployment is that folder's, or else the one in
    COVEY_RPC_URL, or else the deployment's.
    """
    from covey.console.account import Account
    from covey.console.folder_values import read_folder_values

    rpc_url = None
    if folder is not None and (place := read_folder_values(folder)).deployment == deployment:
        rpc_url = place.rpc_url
    return Account(deployment, key_file, pool, rpc_url=rpc_url or os.environ.get("COVEY_RPC_URL"))


def show(values: dict[str, Any], as_json: bool) -> None:
    """Print names and values. In JSON, an `Amount` is a number of smallest units."""
    if as_json:
        typer.echo(json.dumps(values, sort_keys=True, default=lambda amount: amount.value))
        return
    for name, value in values.items():
        text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
        text = ("no", "yes")[value] if isinstance(value, bool) else text
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
    return kind.load(file, read_sets(sets))


def read_sets(sets: list[str] | None) -> dict[str, str]:
    """Return the values of --set by name. Raises OperatorError("bad_settings")."""
    values: dict[str, str] = {}
    for item in sets or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise OperatorError(
                "bad_settings", f"the option --set {item} has no value", fix="Write it in the form --set NAME=VALUE"
            )
        values[name] = value
    return values
