"""`covey origin` and `covey relay`: serve a trainer's policies, and show the state of a server."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.console.options import Json
from covey.console.terminal import describe_duration, quote
from covey.errors import OperatorError

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
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="URL|FOLDER",
            help="Base URL of a relay or an origin, or a pool's folder for its relay. By default the working "
            "directory.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a relay or an origin serves: its newest policies, pieces, disk space, traffic and upstreams.

    Example: `covey relay status mypool`
    """
    from covey.console import options
    from covey.runtime.log import configure
    from covey.shardcast.downloader import Downloader

    configure("relay", level="error")
    url = target if target is not None and "://" in target else find_relay(Path(target or ""))
    typer.echo(quote(url), err=True)
    downloader = Downloader([url])
    try:
        status: dict[str, Any]
        status, _ = downloader.fetch("/status", limit=_MAX_STATUS_BYTES, check=_parse_status, thing="the status")
    finally:
        downloader.close()
    options.show(status if as_json else flatten(status), as_json)


_MAX_STATUS_BYTES = 1 << 20


def find_relay(folder: Path) -> str:
    """Return the local URL of a folder's relay, or else of its origin.

    Raises OperatorError("no_relays") if it has neither, and OperatorError("no_processes") if it is not a folder of
    processes.
    """
    from covey.console.folder_values import build_local_url
    from covey.local.folder import read_processes
    from covey.local.readiness import find_address

    commands = read_processes(folder).values()
    for verb in ("relay run", "origin run"):
        for command in commands:
            if command.startswith(verb):
                host, port = find_address(command)
                return build_local_url(host, int(port))
    raise OperatorError(
        "no_relays",
        f"{folder} runs neither a relay nor an origin",
        fix="Name the URL of one, for example http://127.0.0.1:9001",
    )


def flatten(status: dict[str, Any]) -> dict[str, str]:
    """Return the values of a status as rows for people. A table inside becomes a row for each of its entries."""
    rows: dict[str, str] = {}
    for name, value in status.items():
        entries = dict(enumerate(value, 1)) if isinstance(value, list) else value
        if isinstance(entries, dict):
            label = name.removesuffix("s").replace("_", " ")
            rows |= {quote(f"{label} {key}"): _spell(label, inner) for key, inner in entries.items()}
        else:
            rows[quote(_trim(name))] = _spell(name, value)
    return rows


def _trim(name: str) -> str:
    return name.removesuffix("_s").replace("_per", "").replace("_", " ")


def _spell(name: str, value: Any) -> str:
    """Return an untrusted value as text, with the unit that the end of its name says."""
    from rich.filesize import decimal

    if isinstance(value, dict):
        return ", ".join(quote(f"{_trim(key)} {_spell(key, inner)}") for key, inner in value.items()) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float) and math.isfinite(value):
        if "bytes" in name:
            return decimal(int(value)) + ("/s" if name.endswith("_per_s") else "")
        if name.endswith("_s"):
            return describe_duration(value)
    return quote(str(value))


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
