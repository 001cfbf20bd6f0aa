"""A chain on this machine: starts Anvil, deploys and connects the contracts, and funds accounts.

Keys are derived from a seed string, so they have no value elsewhere.
"""

import fcntl
import gzip
import json
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO

from eth_utils.crypto import keccak

from covey.chain.contracts import Contracts
from covey.chain.deploying import deploy, send_and_wait
from covey.chain.deployment import Deployment
from covey.chain.json_rpc import ChainClient, open_chain
from covey.chain.wallet import Wallet, wallet_from_key
from covey.devnet.anvil import Anvil, require_free_port, start_anvil
from covey.errors import OperatorError
from covey.protocol.ids import Address
from covey.runtime.files import write_atomically

ETHER = 10**18
DEVNET_SEED = "devnet"
"""Default seed of a devnet's keys. The devnet's deployer can mint the test token."""


def derive_key(seed: str, name: str) -> bytes:
    """Derive the private key of one role of a devnet. Example: derive_key("demo", "operator")."""
    return keccak(text=f"covey-devnet/{seed}/{name}")


def derive_wallet(seed: str, name: str) -> Wallet:
    return wallet_from_key(derive_key(seed, name))


def fund(deployment: Deployment, payer: Wallet, tokens: Mapping[Address, int], *, ether: int = 100 * ETHER) -> None:
    """Mint test tokens for each address in `tokens`, and set its ether balance to `ether` wei.

    `tokens` contains amounts in the token's smallest unit. Works only on Anvil.
    """
    client = open_chain(deployment)
    token = Contracts(client, deployment).token
    client.request("anvil_setBalance", payer.address, hex(ether))
    for address, amount in tokens.items():
        client.request("anvil_setBalance", address, hex(ether))
        if amount:
            call = token.mint(address, amount)
            send_and_wait(client, payer, to=call.to, data=call.data, chain_id=deployment.chain_id)


def up(
    folder: Path, *, port: int = 0, block_time: float | None = 1.0, seed: str = DEVNET_SEED, is_fresh: bool = False
) -> tuple[Anvil, Deployment]:
    """Start the folder's chain from `state.json`. If there is none, deploy the contracts and write `deployment.json`.

    The deployer's key is derived from `seed`. `is_fresh` renames both files (suffix `.old`) and starts a new
    chain. Raises OperatorError("devnet_runs") if the folder's chain is already running. Raises
    OperatorError("bad_state") or OperatorError("devnet_differs") if the chain cannot be resumed from the two
    files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state, file = folder / "state.json", folder / "deployment.json"
    with ExitStack() as undo:  # an early end, for example by Ctrl-C, must not leave Anvil running
        log = undo.enter_context((folder / "anvil.log").open("ab"))
        _lock(log, folder)
        if port:
            require_free_port(port)  # before anything is set aside
        if is_fresh:
            for path in (state, file):
                if path.exists():
                    path.replace(path.with_name(path.name + ".old"))
        renewal = f"start a new chain with covey devnet up --folder {folder.absolute()} --fresh"
        known = find_deployment(folder, renewal=renewal)
        if known is None:
            undo.callback(state.unlink, missing_ok=True)  # runs after Anvil's end, at which Anvil writes the file
        anvil = start_anvil(port, block_time=block_time, state=state, log=log)
        undo.callback(anvil.stop)
        (folder / "anvil.pid").write_text(f"{anvil.pid}\n")
        client = ChainClient(anvil.url)
        if known is None:
            deployer = derive_wallet(seed, "deployer")
            client.request("anvil_setBalance", deployer.address, hex(1000 * ETHER))
            _make_unique(client)
            deployment = _deploy_at_once(client, deployer, block_time)
            _save_state(client, state)
        else:
            _require_contracts(client, known, file, renewal)
            start = client.get_block(known.start_block)  # older versions did not record its hash
            deployment = replace(known, rpc_url=anvil.url, start_hash=start.hash)
        deployment.save(file)
        undo.pop_all()
    log.close()  # Anvil has it open too, and now holds the lock alone
    return anvil, deployment


def _make_unique(client: ChainClient) -> None:
    """Mine a block whose hash no other devnet has.

    Devnets that start in the same second would otherwise have equal blocks, because their keys are equal too.
    """
    client.request("anvil_setBalance", f"0x{secrets.token_hex(20)}", "0x1")
    client.request("evm_mine")


def _save_state(client: ChainClient, file: Path) -> None:
    """Write the chain's state in Anvil's format before the deployment is written. Anvil itself would write it later."""
    packed = bytes.fromhex(client.request("anvil_dumpState").removeprefix("0x"))
    write_atomically(file, gzip.decompress(packed))


def _lock(log: IO[bytes], folder: Path) -> None:
    """Lock the folder while this file is open.

    Anvil inherits the open file, so the lock lasts as long as Anvil runs.
    """
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = folder / "anvil.pid"
        stop = f"stop it with kill {pid.read_text().strip()}" if pid.exists() else "stop it first"
        raise OperatorError(
            "devnet_runs", f"the devnet in {folder} is already running", fix=f"Use the running devnet, or {stop}"
        ) from None


def find_deployment(folder: Path, *, renewal: str) -> Deployment | None:
    """Return the deployment of the folder's chain. None if there is no chain yet.

    `renewal` is an alternative that error messages suggest. Example: "start a new chain with --fresh".
    Raises OperatorError("bad_state") or OperatorError("devnet_differs") if the chain cannot be resumed.
    """
    state, file = folder / "state.json", folder / "deployment.json"
    if state.exists():
        try:
            json.loads(state.read_bytes())
        except ValueError as error:
            raise OperatorError(
                "bad_state",
                f"the chain state in {state} is incomplete, because Anvil was killed while writing it",
                fix=f"Restore {state} from a copy, or {renewal}",
            ) from error
    if state.exists() == file.exists():
        return Deployment.load(file) if file.exists() else None
    present, missing = (state, file) if state.exists() else (file, state)
    raise OperatorError(
        "devnet_differs",
        f"{present} belongs to a chain whose file {missing.name} is missing",
        fix=f"Restore the missing file, or {renewal}",
    )


def _require_contracts(client: ChainClient, deployment: Deployment, file: Path, renewal: str) -> None:
    addresses = [*deployment.get_contracts().values(), deployment.token]
    absent = [address for address in addresses if not client.has_code(address)]
    if absent:
        raise OperatorError(
            "devnet_differs",
            f"{file} lists contracts that do not exist on the chain in state.json, for example {absent[0]}",
            fix=f"Restore a matching pair of files, or {renewal}",
        )
    start = client.find_block(deployment.start_block)
    if deployment.start_hash not in (None, start and start.hash):
        raise OperatorError(
            "devnet_differs",
            f"{file} belongs to another chain than the one in state.json, although its contracts have equal addresses",
            fix=f"Restore a matching pair of files, or {renewal}",
        )


def _deploy_at_once(client: ChainClient, deployer: Wallet, block_time: float | None) -> Deployment:
    """Deploy the contracts with each transaction mined at once. Waiting for one block per contract would take long."""
    if block_time is None or block_time != int(block_time):
        return deploy(client.rpc_url, deployer, start="latest")
    # An interval of 0 alone would stop mining, so automine must be enabled next.
    client.request("evm_setIntervalMining", 0)
    client.request("evm_setAutomine", True)
    deployment = deploy(client.rpc_url, deployer, start="latest")
    client.request("evm_setAutomine", False)
    client.request("evm_setIntervalMining", int(block_time))
    return deployment
