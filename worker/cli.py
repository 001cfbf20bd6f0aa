"""`covey worker`: register, replace and remove the node of a worker, and run it."""

from pathlib import Path
from typing import Annotated

import typer

from covey.console import options
from covey.console.options import (
    ConfigFile,
    CoordinatorUrl,
    DeploymentFile,
    Json,
    KeyFile,
    Pool,
    Sets,
    load_settings,
    show,
)

worker = typer.Typer(help="Run a worker, which generates rollouts, and manage its node.", no_args_is_help=True)


@worker.command("register")
def worker_register(
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    node_key_file: Annotated[Path, typer.Option(help="Key file of the node. It is created if it does not exist.")],
    as_json: Json = False,
) -> None:
    """Register a node on chain. The contributor (--key-file) and the node (--node-key-file) both sign.

    Example: `covey worker register --node-key-file node.key --deployment net/deployment.json --pool 1
    --key-file contributor.key`
    """
    from covey.console.account import load_or_make_key

    account = options.open_account(deployment, key_file, pool)
    node = load_or_make_key(node_key_file)
    entry = account.register_node(node)
    show({"node": node.address, "contributor": account.wallet.address, "transaction": entry.transaction_hash}, as_json)


@worker.command("remove")
def worker_remove(
    node: Annotated[str, typer.Argument(help="Address of the node to remove.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    as_json: Json = False,
) -> None:
    """Remove a node from the pool. The contributor remains liable for the node's signatures until the unbonding window
    ends.

    Example: `covey worker remove ADDRESS --deployment net/deployment.json --pool 1 --key-file contributor.key`
    """
    from covey.console.addresses import read_address

    removed = read_address(node)
    account = options.open_account(deployment, key_file, pool)
    entry = account.send(account.contracts.nodes.remove_node(account.pool, removed))
    show({"node": removed, "transaction": entry.transaction_hash}, as_json)


@worker.command("rotate")
def worker_rotate(
    node: Annotated[str, typer.Argument(help="Address of the node to replace.")],
    node_key_file: Annotated[Path, typer.Option(help="Key file of the new node. It is created if it does not exist.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    as_json: Json = False,
) -> None:
    """Replace a node with a new one, for example after its key leaked. The contributor and the new node both sign.

    The contributor remains liable for the old node's signatures until the unbonding window ends.

    Example: `covey worker rotate ADDRESS --node-key-file new.key --deployment net/deployment.json --pool 1 --key-file
    contributor.key`
    """
    from covey.console.account import load_or_make_key
    from covey.console.addresses import read_address

    previous = read_address(node)
    account = options.open_account(deployment, key_file, pool)
    wallet = load_or_make_key(node_key_file)
    entry = account.rotate_node(previous, wallet)
    show({"node": wallet.address, "previous": previous, "transaction": entry.transaction_hash}, as_json)


@worker.command("status")
def worker_status(
    node: Annotated[str, typer.Argument(help="Address of the node.")],
    coordinator_url: CoordinatorUrl = "http://127.0.0.1:8000",
    as_json: Json = False,
) -> None:
    """Show how a coordinator sees a node, and in one sentence why it gets no task.

    Example: `covey worker status ADDRESS --coordinator-url http://127.0.0.1:8000`
    """
    import asyncio

    from covey.console.addresses import read_address
    from covey.console.terminal import quote
    from covey.network.coordinator_client import CoordinatorClient
    from covey.protocol.api.public import NodeDetail

    wanted = read_address(node)

    async def ask() -> NodeDetail:
        async with CoordinatorClient(coordinator_url, None, chain_id=0) as client:  # Nothing is signed.
            return await client.get_node(wanted)

    values = asyncio.run(ask()).model_dump(mode="json")
    texts = {
        name.replace("_", " "): quote(value) if isinstance(value, str) else value for name, value in values.items()
    }
    show(values if as_json else texts, as_json)


@worker.command("pardon")
def worker_pardon(
    address: Annotated[str, typer.Argument(help="Address of a contributor, or of one of its nodes.")],
    deployment: DeploymentFile,
    key_file: KeyFile,
    pool: Pool,
    coordinator_url: CoordinatorUrl = "http://127.0.0.1:8000",
    as_json: Json = False,
) -> None:
    """Take back all strikes of a contributor, so that its nodes suspended for strikes get tasks again. Operator only.

    Nodes that were caught cheating stay suspended. The coordinator logs the pardon, and worker status shows the number
    of pardons.

    Example: `covey worker pardon ADDRESS --deployment net/deployment.json --pool 1 --key-file operator.key`
    """
    from covey.console.addresses import read_address

    pardoned = read_address(address)
    answer = options.open_account(deployment, key_file, pool).pardon(coordinator_url, pardoned)
    show(answer.model_dump(mode="json"), as_json)


@worker.command("run")
def worker_run(
    engine: Annotated[
        str | None, typer.Option(help="Inference engine: auto, hf or vllm. Overrides the setting `engine`.")
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
) -> None:
    """Run a worker: claim tasks, generate rollouts with proofs, and submit them.

    Example: `covey worker run --config worker.toml --engine vllm`
    """
    from worker import app
    from worker.config import WorkerConfig

    chosen = [] if engine is None else [f"engine={engine}"]
    app.run(load_settings(WorkerConfig, config, [*(sets or []), *chosen]))
