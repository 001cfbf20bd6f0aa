"""Public questions to a coordinator. The command says whose answer it shows, and refuses another pool's."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import typer

from covey.chain.deployment import Deployment
from covey.chain.wallet import load_key
from covey.console.folder_values import read_folder_values
from covey.errors import OperatorError
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol.api.public import PoolView

Answer = TypeVar("Answer")


async def ask(url: str, folder: Path | None, question: Callable[[CoordinatorClient], Awaitable[Answer]]) -> Answer:
    """Ask the coordinator at `url`, and print on standard error which pool it serves.

    Nothing is signed. Raises OperatorError("wrong_pool") if it is not the pool of the folder.
    """
    async with CoordinatorClient(url, None, chain_id=0) as client:
        served = await client.get_pool()
        if folder is not None:
            _require_pool_of(folder, served, url)
        described = f"pool {served.pool} on chain {served.chain_id}, operated by {served.operator}"
        typer.echo(f"{url}: {described}", err=True)
        return await question(client)


def _require_pool_of(folder: Path, served: PoolView, url: str) -> None:
    place = read_folder_values(folder)
    deployment = Deployment.load(place.deployment)
    ours: dict[str, object] = {"pool": place.pool, "chain": deployment.chain_id, **deployment.get_contracts()}
    theirs: dict[str, object] = {"pool": served.pool, "chain": served.chain_id, **served.contracts}
    if None not in (deployment.start_hash, served.start_hash):  # test networks can have equal numbers and contracts
        ours["first block"], theirs["first block"] = deployment.start_hash, served.start_hash
    if place.kind == "operator":
        address = load_key(place.key_file).address
        ours["operator"] = address
        theirs["operator"] = address if address == served.signer else served.operator
    wrong = [f"{name} is {theirs.get(name)}, not {value}" for name, value in ours.items() if theirs.get(name) != value]
    if wrong:
        raise OperatorError(
            "wrong_pool",
            f"the coordinator at {url} does not serve the pool of {folder}: {'; '.join(wrong)}",
            fix="Stop the other coordinator, or name the right one with --coordinator-url",
        )
