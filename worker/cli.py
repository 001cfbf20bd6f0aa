"""`covey worker`: register, replace and remove the node of a worker, and run it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from covey.console import options
from covey.console.options import (
    ConfigFile,
    CoordinatorUrl,
    DeploymentFile,
    FolderSource,
    Json,
    KeyFile,
    OptionalCoordinatorUrl,
    Pool,
    Sets,
    load_settings,
    show,
)
from covey.console.terminal import describe_duration, quote
from covey.errors import OperatorError

if TYPE_CHECKING:
    from covey.protocol.ids import Address

worker = typer.Typer(help="Run a worker, which generates rollouts, and manage its node.", no_args_is_help=True)


@worker.command("register")
def worker_register(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    node_key_file: Annotated[Path, typer.Option(help="Key file of the node. It is created if it does not exist.")],
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Register a node on chain. The contributor (--key-file) and the node (--node-key-file) both sign.

    Example: `covey worker register --node-key-file node.key --deployment net/deployment.json --pool 1
    --key-file contributor.key`
    """
    from covey.console.account import load_or_make_key

    account = options.open_account(deployment, key_file, pool, folder=folder)
    node = load_or_make_key(node_key_file)
    entry = account.register_node(node)
    show({"node": node.address, "contributor": account.wallet.address, "transaction": entry.transaction_hash}, as_json)


@worker.command("remove")
def worker_remove(
    node: Annotated[str, typer.Argument(help="Address of the node to remove.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Remove a node from the pool. The contributor remains liable for the node's signatures until the unbonding window
    ends.

    Example: `covey worker remove ADDRESS myworker`
    """
    from covey.console.addresses import read_address

    removed = read_address(node)
    account = options.open_account(deployment, key_file, pool, folder=folder)
    entry = account.send(account.contracts.nodes.remove_node(account.pool, removed))
    show({"node": removed, "transaction": entry.transaction_hash}, as_json)


@worker.command("rotate")
def worker_rotate(
    node: Annotated[str, typer.Argument(help="Address of the node to replace.")],
    node_key_file: Annotated[Path, typer.Option(help="Key file of the new node. It is created if it does not exist.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Replace a node with a new one, for example after its key leaked. The contributor and the new node both sign.

    The contributor remains liable for the old node's signatures until the unbonding window ends.

    Example: `covey worker rotate ADDRESS --node-key-file new.key myworker`
    """
    from covey.console.account import load_or_make_key
    from covey.console.addresses import read_address

    previous = read_address(node)
    account = options.open_account(deployment, key_file, pool, folder=folder)
    wallet = load_or_make_key(node_key_file)
    entry = account.rotate_node(previous, wallet)
    show({"node": wallet.address, "previous": previous, "transaction": entry.transaction_hash}, as_json)


@worker.command("status")
def worker_status(
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="Address of the node, or a worker folder for all nodes in it.")
    ],
    coordinator_url: OptionalCoordinatorUrl = None,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Show how a coordinator sees a node, and in one sentence why it gets no task.

    Example: `covey worker status myworker`
    """
    import asyncio

    from covey.console.addresses import read_address
    from covey.console.folder_values import read_folder_values
    from covey.console.served_pool import ask
    from covey.network.coordinator_client import CoordinatorClient
    from covey.protocol.api.public import NodeDetail

    if Path(node).is_dir():
        folder, nodes = Path(node), _list_nodes(Path(node))
        coordinator_url = coordinator_url or read_folder_values(folder).coordinator_url
    else:
        nodes = [read_address(node)]
    if coordinator_url is None:
        raise OperatorError(
            "no_coordinator",
            "it is unknown which coordinator to ask",
            fix="Add FOLDER or --coordinator-url, for example --coordinator-url http://127.0.0.1:8000",
        )

    async def get_them(client: CoordinatorClient) -> list[NodeDetail]:
        return [await client.get_node(wanted) for wanted in nodes]

    found = [view.model_dump(mode="json") for view in asyncio.run(ask(coordinator_url, folder, get_them))]
    if as_json:
        show({"nodes": found} if Path(node).is_dir() else found[0], as_json)
        return
    for i, values in enumerate(found):
        if i:
            typer.echo()
        texts = values | {name: quote(value) for name, value in values.items() if isinstance(value, str)}
        texts |= {name: describe_duration(texts[name]) for name in _DURATIONS if texts[name] is not None}
        texts["sums"] = ", ".join(_describe_sum(name, each) for name, each in values["sums"].items())
        show({name.removesuffix("_seconds").replace("_", " "): text for name, text in texts.items()}, as_json)


def _describe_sum(name: str, view: dict[str, Any]) -> str:
    """Return a running sum with its limits. Example: "logprob 2 of 2.5, suspended above 2.9"."""
    total, limit, far = (f"{view[key]:.4g}" for key in ("total", "limit", "suspension_limit"))
    return f"{name} {total} of {limit}, suspended above {far}"


_DURATIONS = ("silent_seconds", "cooldown_seconds")


def _list_nodes(folder: Path) -> "list[Address]":
    """Return the addresses of a folder's workers. Raises OperatorError("no_folder_settings") if it has none."""
    from covey.chain.wallet import load_key
    from worker.config import WorkerConfig

    files = sorted(folder.glob("worker*.toml"))
    if not files:
        raise OperatorError(
            "no_folder_settings",
            f"{folder} has no settings of a worker",
            fix="Use a folder that covey join has created",
        )
    return [load_key(WorkerConfig.load(file, environment={}).key_file).address for file in files]


@worker.command("pardon")
def worker_pardon(
    address: Annotated[str, typer.Argument(help="Address of a contributor, or of one of its nodes.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    coordinator_url: CoordinatorUrl,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Take back strikes, faults or running sums that suspend a contributor or one of its nodes, so that it gets tasks
    again. Operator only.

    A node that is suspended for running sums keeps its strikes. Nodes that were caught cheating stay suspended. The
    coordinator logs the pardon, and worker status shows the number of pardons for strikes and faults.

    Example: `covey worker pardon ADDRESS mypool`
    """
    from covey.console.addresses import read_address

    pardoned = read_address(address)
    answer = options.open_account(deployment, key_file, pool, folder=folder).pardon(coordinator_url, pardoned)
    show(answer.model_dump(mode="json"), as_json)


@worker.command("consent")
def worker_consent(
    node: Annotated[str, typer.Argument(help="Address of the node whose work is void from now on.")],
    verdict: Annotated[
        Literal["accept", "reject"], typer.Option(help="Verdict that validators should give: reject for bad work.")
    ],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Sign with the contributor's key that a node's work is void, and print the lines for the coordinator's settings.

    Such work is a canary: it is not paid, and shows which validators look at what they accept. The consent holds until
    the operator removes it from the settings, or another contributor vouches for the node. See docs/guides/
    use-canaries.md.

    Example: `covey worker consent ADDRESS --verdict reject mypool`
    """
    from covey.console.addresses import read_address
    from covey.protocol.canaries import CanaryKind
    from covey.protocol.eip712 import Domain, sign
    from covey.protocol.messages import CanaryConsent

    account, address = options.open_account(deployment, key_file, pool, folder=folder), read_address(node)
    owner = account.contracts.nodes.contributor_of(account.pool, address)
    if owner != account.wallet.address:
        raise OperatorError(
            "not_the_contributor",
            f"the contributor of {address} in pool {account.pool} is {owner or 'nobody'}, not {account.wallet.address}",
            fix="Use the key file of the node's contributor",
        )
    consent = CanaryConsent(pool=account.pool, node=address, kind=CanaryKind[verdict.upper()])
    court = account.contracts.court.address
    signature = sign(consent, Domain(chain_id=account.contracts.deployment.chain_id, contract=court), account.wallet)
    if as_json:
        show({"node": address, "verdict": verdict, "consent": signature}, as_json)
    else:
        typer.echo(f'[canaries."{address}"]\nverdict = "{verdict}"\nconsent = "{signature}"')


@worker.command("run")
def worker_run(
    engine: Annotated[
        str | None, typer.Option(help="Inference engine: auto, hf or vllm. Overrides the setting `engine`.")
    ] = None,
    prefer: Annotated[
        Literal["pay", "fair", "first"] | None,
        typer.Option(help="How to choose among several pools. Overrides the setting `prefer`."),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", help="TOML file with the settings of the worker. Once for each pool to work for."),
    ] = None,
    sets: Sets = None,
) -> None:
    """Run a worker: claim tasks, generate rollouts with proofs, and submit them.

    With several pools it works for one at a time, and leaves a pool that has no work for another one.

    Example: `covey worker run --config one/worker.toml --config two/worker.toml --prefer pay`
    """
    from worker import app
    from worker.config import WorkerConfig

    given = {"engine": engine, "prefer": prefer}
    chosen = [*(sets or []), *(f"{name}={value}" for name, value in given.items() if value is not None)]
    app.run([load_settings(WorkerConfig, file, chosen) for file in (config or (None,))])


@worker.command("measure")
def worker_measure(
    seconds: Annotated[float, typer.Option(min=1.0, max=600.0, help="Length of the measurement in seconds.")] = 60.0,
    config: ConfigFile = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Measure this machine at the work of the pool, and show what it would earn. Nothing is claimed or submitted.

    The newest policy is downloaded, and the worker finds it again when it starts. One task warms the engine up first.

    Example: `covey worker measure --config worker.toml --seconds 60`
    """
    from covey.chain.amounts import read_unit
    from covey.chain.contracts import Contracts
    from covey.chain.deployment import Deployment
    from covey.chain.json_rpc import open_node
    from covey.console.earnings_lines import describe_earnings
    from covey.network.earnings import expect_earnings
    from covey.protocol.ids import PoolId
    from covey.runtime.log import log_to_stderr
    from worker.config import WorkerConfig
    from worker.measuring import measure

    log_to_stderr()
    settings = load_settings(WorkerConfig, config, sets)
    speed = measure(settings, seconds)
    deployment = Deployment.load(settings.deployment)
    contracts, pool = Contracts(open_node(deployment, settings.rpc_url), deployment), PoolId(settings.pool)
    earnings = expect_earnings(speed.terms, speed.params, speed.tokens_per_second)
    measured = {
        "tokens_per_second": round(speed.tokens_per_second, 1),
        "tasks": speed.tasks,
        "seconds": speed.seconds,
        "policy": speed.policy,
    }
    show(measured | describe_earnings(earnings, read_unit(contracts.get_token(pool))), as_json)
