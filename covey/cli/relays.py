"""`covey origin` and `covey relay`: serve a trainer's policies, and show the state of a server."""

from pathlib import Path
from typing import Annotated, Any

import typer

from covey.console.options import Json

origin = typer.Typer(help="Serve the policies that the trainer publishes.", no_args_is_help=True)
relay = typer.Typer(help="Run a relay, which mirrors the policies of an origin.", no_args_is_help=True)

Host = Annotated[str, typer.Option(help="IP address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]
Requests = Annotated[
    float, typer.Option(min=1, help="Requests per second that one client address may make, on average.")
]
Megabytes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Megabytes per second that one client address may download. Unlimited by default."),
]


@origin.command("run")
def origin_run(
    root: Annotated[Path, typer.Option(help="Folder into which the trainer publishes policies.")],
    host: Host = "127.0.0.1",
    port: Port = 9000,
    requests_per_second: Requests = 1000.0,
    megabytes_per_second: Megabytes = None,
) -> None:
    """Serve the policies that the trainer publishes.

    Example: `covey origin run --root policies --port 9000`
    """
    from covey.shardcast import launch

    limits = launch.build_limits(requests_per_second, megabytes_per_second)
    launch.run_origin(root=root, host=host, port=port, limits=limits)


@relay.command("run")
def relay_run(
    root: Annotated[Path, typer.Option(help="Folder for the copies that this relay keeps.")],
    upstream: Annotated[
        list[str], typer.Option(help="Base URL of an origin or relay to mirror; may be repeated, best first.")
    ],
    host: Host = "127.0.0.1",
    port: Port = 9001,
    pool: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Pool to mirror from the start; may be repeated. Others are mirrored on request."),
    ] = None,
    keep_policies: Annotated[
        int,
        typer.Option(
            min=1, help="Number of policies to fetch ahead and keep, newest first. Older ones are fetched on request."
        ),
    ] = 5,
    keep_datasets: Annotated[
        int, typer.Option(min=1, help="Number of data sets to keep, most recently fetched first.")
    ] = 16,
    max_gigabytes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Gigabytes of disk that the pieces of policies and data sets may take, for example 200. "
            "Unlimited by default.",
        ),
    ] = None,
    requests_per_second: Requests = 1000.0,
    megabytes_per_second: Megabytes = None,
) -> None:
    """Run a relay: it fetches each new policy as soon as it is offered, checks every piece and serves it.

    Example: `covey relay run --root copies --upstream http://127.0.0.1:9000 --port 9001`
    """
    from covey.shardcast import launch
    from covey.shardcast.relay import RelaySettings

    launch.run_relay(
        root=root,
        upstreams=upstream,
        host=host,
        port=port,
        settings=RelaySettings(keep=keep_policies, keep_datasets=keep_datasets, pools=tuple(pool or ())),
        limits=launch.build_limits(requests_per_second, megabytes_per_second),
        max_bytes=None if max_gigabytes is None else round(max_gigabytes * 1e9),
    )


@relay.command("status")
def relay_status(
    url: Annotated[str, typer.Argument(help="Base URL of a relay or an origin.")] = "http://127.0.0.1:9001",
    as_json: Json = False,
) -> None:
    """Show what a relay or an origin serves: its newest policies, pieces, disk space, traffic and upstreams.

    Example: `covey relay status http://127.0.0.1:9001`
    """
    import json

    from covey.console import options
    from covey.runtime.log import configure
    from covey.shardcast.downloader import Downloader

    configure("relay", level="error")
    downloader = Downloader([url])
    try:
        status: dict[str, Any]
        status, _ = downloader.fetch("/status", limit=_MAX_STATUS_BYTES, check=_parse_status, thing="the status")
    finally:
        downloader.close()
    options.show({name: json.dumps(value) if isinstance(value, dict | list) and not as_json else value
                  for name, value in status.items()}, as_json)  # fmt: skip


_MAX_STATUS_BYTES = 1 << 20


def _parse_status(data: bytes) -> dict[str, Any]:
    import json

    from covey.errors import ProtocolError

    try:
        status = json.loads(data)
    except ValueError as error:
        raise ProtocolError("bad_status", f"the status is not JSON: {error}", status=502) from error
    if not isinstance(status, dict):
        raise ProtocolError("bad_status", "the status is not a JSON object", status=502)
    return status
