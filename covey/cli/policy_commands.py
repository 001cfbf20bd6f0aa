"""`covey policy`: the policies that a pool has published, the relays that serve them, and their files."""

import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.console import options
from covey.console.options import DeploymentFile, FolderSource, Json, Pool
from covey.console.terminal import describe_time
from covey.errors import CoveyError, OperatorError
from covey.runtime.urls import is_plain_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from covey.chain.events import PolicyPublished
    from covey.console.account import Account
    from covey.protocol.ids import Hash, Step
    from covey.shardcast.policy_fetch import FetchProgress

policy = typer.Typer(help="List, download and verify the policies of a pool.", no_args_is_help=True)

Relays = Annotated[list[str] | None, typer.Option("--relay", help="Base URL of a relay to ask; may be repeated.")]
CoordinatorOption = Annotated[
    str | None, typer.Option("--coordinator-url", help="Base URL of a coordinator. The relays that it lists are asked.")
]
_FOLDER = Path("policies")
_KEPT = 5
"""Number of policies that `covey policy fetch` keeps in its folder, newest first."""


@policy.command("list")
def policy_list(
    deployment: DeploymentFile,
    pool: Pool,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of policies to list.")] = 20,
    relay: Relays = None,
    coordinator_url: CoordinatorOption = None,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """List published policies, newest first, with step, time, block and record hash.

    A relay is listed as having a policy if it serves its record and knows a route to it.

    Example: `covey policy list mypool`
    """
    from covey.runtime.log import configure

    configure("policy", level="error")  # A relay that does not answer is in the list.
    account = options.open_account(deployment, None, pool, folder=folder)
    published = account.history.list_policies(account.pool)[: -limit - 1 : -1]
    relays = _list_relays(account, relay, coordinator_url)
    served = _look(relays, published) if relays else {}
    rows: list[dict[str, Any]] = [
        {
            "step": event.step,
            "record_hash": event.record_hash,
            "block": event.block_number,
            "published_at": account.get_time(event.block_number),
            "relays": {url: served[url, event.step] == "" for url in relays},
        }
        for event in published
    ]
    if as_json:
        options.show({"policies": rows}, as_json)
        return
    if not rows:
        typer.echo(f"pool {pool} has not published any policy", err=True)
        return
    now = account.get_time()
    for row in rows:
        typer.echo(
            f"{row['step']:>5}  {row['record_hash']}  block {row['block']}"
            f"  {describe_time(row['published_at'], now=now)}"
        )
        for url in relays:
            failure = served[url, row["step"]]
            typer.echo(f"{'':5}  {'missing from' if failure else 'at'} {url}{f': {failure}' if failure else ''}")


def _look(relays: "Sequence[str]", published: "Sequence[PolicyPublished]") -> dict[tuple[str, int], str]:
    """Return, for each relay and step, why the relay does not serve the policy. An empty string means that it does."""
    from concurrent.futures import ThreadPoolExecutor

    from covey.shardcast.policy_source import look_at_relay

    failures: dict[tuple[str, int], str] = {}

    def ask(url: str) -> None:
        for event in published:
            try:
                look_at_relay(url, pool=event.pool, record_hash=event.record_hash)
                failures[url, event.step] = ""
            except CoveyError as error:
                failures[url, event.step] = error.code

    with ThreadPoolExecutor(max(1, len(relays))) as executor:
        list(executor.map(ask, relays))
    return failures


@policy.command("fetch")
def policy_fetch(
    deployment: DeploymentFile,
    pool: Pool,
    step: Annotated[int | None, typer.Option(min=0, help="Step of the policy. By default the newest.")] = None,
    folder: Annotated[
        Path, typer.Option(help="Folder for policies. Deltas are applied to those that are in it.")
    ] = Path("policies"),
    relay: Relays = None,
    coordinator_url: CoordinatorOption = None,
    pool_folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Download a policy, check it against the chain, and print its folder, which transformers and vLLM can load.

    An interrupted download goes on where it ended.

    Example: `covey policy fetch mypool`
    """
    import time

    from covey.network.entry import open_policies
    from covey.runtime.log import configure
    from covey.shardcast.policy_fetch import FetchProgress
    from covey.shardcast.policy_store import PolicyStore

    configure("policy", level="warning")
    account = options.open_account(deployment, None, pool, folder=pool_folder)
    chosen, record_hash = _choose(account, step)
    relays = _list_relays(account, relay, coordinator_url)
    if not relays:
        raise OperatorError("no_relays", "no relay is set", fix="Add --relay URL or --coordinator-url URL")
    client = open_policies(account.contracts, relays, pool=account.pool, store=PolicyStore(folder, keep=_KEPT))
    progress, started = FetchProgress(), time.monotonic()
    try:
        with _show_progress(progress, is_quiet=as_json):
            found = client.fetch(chosen, record_hash, progress=progress)
    finally:
        client.source.downloader.close()
    values = {
        "folder": str(found),
        "step": chosen,
        "record": record_hash,
        "ways": "+".join(progress.ways) or "none, it was here",
        "bytes": progress.size,
        "seconds": round(time.monotonic() - started, 3),
    }
    options.show(values, as_json)


@policy.command("verify")
def policy_verify(
    deployment: DeploymentFile,
    pool: Pool,
    folder: Annotated[Path, typer.Argument(help="Folder of one policy: downloaded, or exported by a trainer.")],
    step: Annotated[int | None, typer.Option(min=0, help="Step of the policy. By default that of its record.")] = None,
    pool_folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Compare every tensor and file of a policy with the record whose hash is on chain.

    Example: `covey policy verify policies/7-0x5f... mypool`
    """
    from covey.protocol.ids import ZERO_HASH, Step
    from covey.protocol.policy_record import RECORD_FILE
    from covey.shardcast.policy_export import find_export_damage
    from covey.shardcast.policy_folder import find_damage, read_step

    account = options.open_account(deployment, None, pool, folder=pool_folder)
    if (folder / RECORD_FILE).exists():
        chosen, expected = _choose(account, read_step(folder))
        damage = find_damage(folder, expected, threads=os.cpu_count() or 1)
    else:
        if step is None:
            raise OperatorError("no_step", f"{folder} has no {RECORD_FILE}", fix="Set --step to the policy's step")
        chosen, expected = _choose(account, step)
        parent = account.contracts.policies.policy_of(account.pool, Step(chosen - 1)) if chosen else ZERO_HASH
        damage = find_export_damage(folder, expected, pool=account.pool, step=chosen, parent=parent)
    options.show({"folder": str(folder), "step": chosen, "record": expected, "damage": damage or None}, as_json)
    if damage:
        raise typer.Exit(1)


@contextmanager
def _show_progress(progress: "FetchProgress", *, is_quiet: bool) -> "Iterator[None]":
    """Show a progress bar on a terminal, and nothing otherwise."""
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    console, ended = Console(stderr=True), threading.Event()
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=is_quiet or not console.is_terminal) as bar:
        task = bar.add_task("policy", total=None)

        def follow() -> None:
            while not ended.wait(0.1):
                ways = "+".join(progress.ways) or "policy"
                bar.update(task, description=ways, total=progress.size or None, completed=progress.received)

        thread = threading.Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _list_relays(account: "Account", relay: list[str] | None, coordinator_url: str | None) -> list[str]:
    """Return the relays in the options and those of the coordinator. Raises OperatorError("bad_relay")."""
    relays = list(relay or ())
    for url in relays:
        if not is_plain_url(url):
            raise OperatorError(
                "bad_relay", f"the relay URL {url!r} is not valid", fix="Use a URL such as http://HOST:9001"
            )
    if coordinator_url is not None:
        relays += [url for url in account.list_relays(coordinator_url) if is_plain_url(url) and url not in relays]
    return relays


def _choose(account: "Account", step: int | None) -> "tuple[Step, Hash]":
    """Return a step and the hash of its record on chain, by default the newest. Raises OperatorError("no_policy")."""
    from covey.protocol.ids import Step

    steps = account.contracts.policies.steps_of(account.pool)
    chosen = Step(steps - 1 if step is None else step)
    if not 0 <= chosen < steps:
        raise OperatorError(
            "no_policy",
            f"pool {account.pool} has published {steps} policies, so there is no policy {max(chosen, 0)}",
            fix="List the policies with covey policy list",
        )
    return chosen, account.contracts.policies.policy_of(account.pool, chosen)
