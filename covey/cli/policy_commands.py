"""`covey policy list`: the policies that a pool has published, and the relays that serve them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.console import options
from covey.console.options import DeploymentFile, Json, Pool
from covey.console.terminal import describe_time
from covey.errors import CoveyError, OperatorError
from covey.runtime.urls import is_plain_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covey.chain.events import PolicyPublished

policy = typer.Typer(help="List published policies.", no_args_is_help=True)


@policy.command("list")
def policy_list(
    deployment: DeploymentFile,
    pool: Pool,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of policies to list.")] = 20,
    relay: Annotated[
        list[str] | None, typer.Option(help="Base URL of a relay to query for each policy; may be repeated.")
    ] = None,
    coordinator_url: Annotated[
        str | None,
        typer.Option("--coordinator-url", help="Base URL of a coordinator. Its relays are queried for each policy."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List published policies, newest first, with step, time, block and manifest hash.

    A relay is listed as having a policy if it serves the manifest whose hash is on chain.

    Example: `covey policy list --deployment net/deployment.json --pool 1 --relay http://127.0.0.1:9001`
    """
    import asyncio

    account = options.open_account(deployment, None, pool)
    published = account.history.list_policies(account.pool)[: -limit - 1 : -1]
    relays = list(relay or ())
    for url in relays:
        if not is_plain_url(url):
            raise OperatorError(
                "bad_relay", f"the relay URL {url!r} is not valid", fix="Use a URL such as http://HOST:9001"
            )
    if coordinator_url is not None:
        relays += [url for url in account.list_relays(coordinator_url) if is_plain_url(url) and url not in relays]
    served = asyncio.run(_look(relays, published)) if relays else {}
    rows: list[dict[str, Any]] = [
        {
            "step": event.step,
            "manifest_hash": event.manifest_hash,
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
            f"{row['step']:>5}  {row['manifest_hash']}  block {row['block']}"
            f"  {describe_time(row['published_at'], now=now)}"
        )
        for url in relays:
            failure = served[url, row["step"]]
            typer.echo(f"{'':5}  {'missing from' if failure else 'at'} {url}{f': {failure}' if failure else ''}")


async def _look(relays: "Sequence[str]", published: "Sequence[PolicyPublished]") -> dict[tuple[str, int], str]:
    """Return, for each relay and step, why the relay does not serve the policy. An empty string means that it does."""
    import asyncio

    from covey.shardcast.client import ShardClient

    failures: dict[tuple[str, int], str] = {}

    async def ask(url: str) -> None:
        client = ShardClient([url])
        try:
            for event in published:
                try:
                    await client.fetch_manifest(event.pool, event.step, event.manifest_hash)
                    failures[url, event.step] = ""
                except CoveyError as error:
                    failures[url, event.step] = error.code
        finally:
            await client.close()

    await asyncio.gather(*map(ask, relays))
    return failures
