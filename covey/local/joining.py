"""Joins a pool: checks the coordinator's statements against the chain, and creates the worker's folder.

    keys/contributor.key keys/node-1.key ...     keys of the stake and of each worker, mode 600
    deployment.json                              chain and contracts
    worker.toml                                  settings; worker-1.toml ... if there are several
    processes.toml                               the workers, for `covey up`

The contracts control the stake, so they come from `--deployment`, or the user has confirmed them.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tomlkit

from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.json_rpc import ChainClient, open_node
from covey.chain.structs import PoolState, PoolTerms
from covey.chain.wallet import save_key
from covey.devnet.anvil import CHAIN_ID
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.local.folder import PROCESSES_FILE, new_folder, write_processes
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol.api.public import PoolView
from covey.protocol.ids import Address, PoolId
from covey.protocol.params import PoolParams
from covey.runtime.urls import hide_secrets, is_public_url


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPool:
    """A pool whose values have been checked against the chain."""

    pool: PoolId
    url: str
    """Base URL of the coordinator."""
    deployment: Deployment
    terms: PoolTerms
    params: PoolParams
    operator: Address


async def ask_for_pool(url: str) -> PoolView:
    """Return the coordinator's description of its pool. It is not checked.

    Raises OperatorError("bad_url"), or OperatorError("not_a_coordinator") if a different service responds.
    """
    if not is_public_url(url):
        raise OperatorError(
            "bad_url",
            f"{hide_secrets(url)} is not a valid URL of a coordinator",
            fix="Use a URL such as http://127.0.0.1:8000",
        )
    async with CoordinatorClient(url, None, chain_id=0) as client:
        try:
            return await client.get_pool()
        except ProtocolError as error:
            raise OperatorError(
                "not_a_coordinator",
                f"the service at {hide_secrets(url)} is not a coordinator: {error.message}",
                fix="Use the coordinator's base URL, as published by the pool's operator",
            ) from error


def check_pool(view: PoolView, url: str, deployment: Deployment) -> CheckedPool:
    """Read the pool from the chain and compare it with the coordinator's description.

    Raises OperatorError("wrong_chain"), OperatorError("pool_not_active") or ProtocolError("bad_params") if they differ.
    """
    contracts = Contracts(open_node(deployment), deployment)
    state = contracts.pools.state_of(view.pool)
    if state is not PoolState.ACTIVE:
        raise OperatorError(
            "pool_not_active",
            f"pool {view.pool} is not active: its state on chain is {state.name.lower()}",
            fix="Join another pool",
        )
    terms = contracts.pools.get_terms(view.pool)
    params = PoolParams.from_text(view.params, terms.params_hash)
    operator = contracts.pools.operator_of(view.pool)
    return CheckedPool(
        pool=view.pool, url=url.rstrip("/"), deployment=deployment, terms=terms, params=params, operator=operator
    )


def create_worker_folder(
    folder: Path, pool: CheckedPool, devices: Sequence[str], tensor_parallel_size: int
) -> list[Path]:
    """Write keys and settings of one worker per device, and return the workers' settings files.

    Raises OperatorError("folder_not_empty") or OperatorError("no_folder"); see `require_new`.
    """
    names = ["worker"] if len(devices) == 1 else [f"worker-{i + 1}" for i in range(len(devices))]
    with new_folder(folder) as draft:
        pool.deployment.save(draft / "deployment.json")
        save_key(draft / "keys" / "contributor.key", secrets.token_bytes(32))
        for i, (name, device) in enumerate(zip(names, devices, strict=True)):
            key = Path("keys") / f"node-{i + 1}.key"
            save_key(draft / key, secrets.token_bytes(32))
            values: dict[str, object] = {
                "home": name,
                "policies": "policies",
                "pool": pool.pool,
                "deployment": "deployment.json",
                "key_file": str(key),
                "coordinator_url": pool.url,
                "device": device,
            }
            if pool.deployment.without_secrets().rpc_url is None:
                values["rpc_url"] = pool.deployment.choose_node()
            table = {"vllm": {"tensor_parallel_size": tensor_parallel_size}} if tensor_parallel_size > 1 else {}
            head = f"# Settings of `covey worker run`; `covey config show worker --config {name}.toml` explains each.\n"
            (draft / f"{name}.toml").write_text(head + tomlkit.dumps(values | table))
        write_processes(draft / PROCESSES_FILE, {name: f"worker run --config {name}.toml" for name in names})
    return [folder / f"{name}.toml" for name in names]


def is_devnet(deployment: Deployment) -> bool:
    """Return whether the chain is run by Anvil, where anyone can get test money."""
    if deployment.chain_id != CHAIN_ID:
        return False
    try:
        ChainClient(deployment.choose_node()).request("anvil_nodeInfo")
    except (ProtocolError, TransientError, OperatorError):
        return False
    return True


def with_node(deployment: Deployment, rpc_url: str | None) -> Deployment:
    """Return the deployment with `rpc_url` as the node of its chain. Return it unchanged if `rpc_url` is None."""
    return deployment if rpc_url is None else replace(deployment, rpc_url=rpc_url)
