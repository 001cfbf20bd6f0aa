"""`covey origin` and `covey relay`: serve a trainer's policies."""

from pathlib import Path
from typing import Annotated

import typer

origin = typer.Typer(help="Serve the trainer's policies.", no_args_is_help=True)
relay = typer.Typer(help="Mirror the policies of an origin.", no_args_is_help=True)

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]


@origin.command("run")
def origin_run(
    root: Annotated[Path, typer.Option(help="Folder that the trainer publishes into.")],
    host: Host = "127.0.0.1",
    port: Port = 9000,
) -> None:
    """Serve the trainer's policies.

    Example: `covey origin run --root policies --port 9000`
    """
    from covey.shardcast import app

    app.run(root=root, host=host, port=port)


@relay.command("run")
def relay_run(
    root: Annotated[Path, typer.Option(help="Folder of this relay's copies.")],
    upstream: Annotated[str, typer.Option(help="Base URL of the origin or another relay.")],
    host: Host = "127.0.0.1",
    port: Port = 9001,
    keep_policies: Annotated[
        int, typer.Option(min=1, help="Number of newest policies to keep; an older one is fetched on request.")
    ] = 5,
    keep_datasets: Annotated[
        int, typer.Option(min=1, help="Number of data sets to keep: those that were fetched last.")
    ] = 16,
) -> None:
    """Mirror an origin: fetch on demand, check every shard, serve.

    Example: `covey relay run --root copies --upstream http://127.0.0.1:9000 --port 9001`
    """
    from covey.shardcast import app

    app.run(root=root, host=host, port=port, upstream=upstream, keep=keep_policies, keep_datasets=keep_datasets)
