"""`covey worker`: run a worker and register its node."""

from pathlib import Path
from typing import Annotated

import typer

from covey.console import options
from covey.console.options import (
    ConfigFile,
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
    from covey.chain.wallet import load_key
    from covey.console.account import make_key

    account = options.open_account(deployment, key_file, pool)
    node = load_key(node_key_file) if node_key_file.exists() else make_key(node_key_file)
    entry = account.register_node(node)
    show({"node": node.address, "contributor": account.wallet.address, "transaction": entry.transaction_hash}, as_json)


@worker.command("run")
def worker_run(
    engine: Annotated[
        str | None, typer.Option(help="Inference engine: auto, hf or vllm. Takes precedence over the setting engine.")
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
