"""`covey origin` and `covey relay`: serve a trainer's policies."""

from pathlib import Path
from typing import Annotated

import typer

origin = typer.Typer(help="Serve the policies that the trainer publishes.", no_args_is_help=True)
relay = typer.Typer(help="Run a relay, which mirrors the policies of an origin.", no_args_is_help=True)

Host = Annotated[str, typer.Option(help="IP address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]


@origin.command("run")
def origin_run(
    root: Annotated[Path, typer.Option(help="Folder into which the trainer publishes policies.")],
    host: Host = "127.0.0.1",
    port: Port = 9000,
) -> None:
    """Serve the policies that the trainer publishes.

    Example: `covey origin run --root policies --port 9000`
    """
    from covey.shardcast import app

    app.run(root=root, host=host, port=port)


@relay.command("run")
def relay_run(
    root: Annotated[Path, typer.Option(help="Folder for the copies that this relay keeps.")],
    upstream: Annotated[str, typer.Option(help="Base URL of the origin or relay to mirror.")],
    host: Host = "127.0.0.1",
    port: Port = 9001,
    keep_policies: Annotated[
        int,
        typer.Option(
            min=1, help="Number of policies to keep, newest first. An older policy is fetched again on request."
        ),
    ] = 5,
    keep_datasets: Annotated[
        int, typer.Option(min=1, help="Number of data sets to keep, most recently fetched first.")
    ] = 16,
) -> None:
    """Run a relay: it fetches files from an origin or relay on request, checks every shard and serves them.

    Example: `covey relay run --root copies --upstream http://127.0.0.1:9000 --port 9001`
    """
    from covey.shardcast import app

    app.run(root=root, host=host, port=port, upstream=upstream, keep=keep_policies, keep_datasets=keep_datasets)
