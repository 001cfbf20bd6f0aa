"""`covey wallet`: create keys in files and show their addresses."""

import json
from pathlib import Path
from typing import Annotated

import typer

from covey.console.options import Json

wallet = typer.Typer(help="Create and show key files.", no_args_is_help=True)


@wallet.command("new")
def wallet_new(
    file: Annotated[Path, typer.Argument(help="New key file to create. It must not exist.")],
    encrypt: Annotated[
        bool,
        typer.Option(
            "--encrypt",
            help="Write a keystore with the passphrase in the file of COVEY_PASSPHRASE_FILE, or a typed one.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a key, write it to a new file and print its address.

    Example: `covey wallet new operator.key`
    """
    from covey.chain.keystore import read_passphrase
    from covey.console.account import make_key

    passphrase = read_passphrase(file, is_new=True) if encrypt else None
    _show_address(make_key(file, passphrase=passphrase).address, as_json)


@wallet.command("show")
def wallet_show(file: Annotated[Path, typer.Argument(help="Key file to read.")], as_json: Json = False) -> None:
    """Print the address of the key in a file.

    Example: `covey wallet show operator.key`
    """
    from covey.chain.wallet import load_key

    _show_address(load_key(file).address, as_json)


def _show_address(address: str, as_json: bool) -> None:
    """Print only the address, as `$(covey wallet show FILE)` requires, or JSON."""
    typer.echo(json.dumps({"address": address}) if as_json else address)
