"""A chain on this machine: Anvil up, contracts deployed and wired, accounts funded; called by `covey.cli` and demo.

Keys follow from a seed string, so they are worth nothing elsewhere.
"""

import fcntl
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag
from typing import IO

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from covey.anvil import Anvil, require_free_port, start_anvil
from covey.chain import codec
from covey.chain.client import ChainClient, MinedTransaction
from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.wallet import Wallet, wallet_from_key
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.ids import Address

ETHER = 10**18
MINE_TIMEOUT_S = 300.0
DEVNET_SEED = "devnet"
"""Seed of the keys of a devnet that names no other: its deployer mints the test token."""


def derive_key(seed: str, name: str) -> bytes:
    """The private key of one role of a devnet.  Example: derive_key("demo", "operator")."""
    return keccak(text=f"covey-devnet/{seed}/{name}")


def derive_wallet(seed: str, name: str) -> Wallet:
    return wallet_from_key(derive_key(seed, name))


def deploy(
    rpc_url: str, deployer: Wallet, *, token: Address | None = None, say: Callable[[str], None] = lambda _: None
) -> Deployment:
    """Deploy all contracts; the deployer becomes the admin, who may pause new work and nothing else.

    `token` is the ERC-20 of the deployment's pools; None deploys a test token.  The deployer needs ether.
    Raises TransientError if the node does not answer or mine.
    """
    client = ChainClient(rpc_url)
    start_block = client.block_number()

    def create(name: str, *args: object) -> Address:
        say(f"deploying {name}")
        return _create(client, deployer, name, *args)

    chosen = token or create("TestToken")
    pools = create("PoolRegistry", deployer.address)
    nodes = create("NodeRegistry", pools)
    policies = create("PolicyRegistry", pools)
    # StakeManager names the two that come after it, so that nobody can name others later.
    nonce = client.count_transactions(deployer.address)
    successors = [predict_address(deployer.address, nonce + i) for i in (1, 2)]
    stakes = create("StakeManager", pools, *successors)
    ledger = create("EpochLedger", pools, stakes)
    court = create("SlashingCourt", pools, nodes, stakes)
    return Deployment(
        chain_id=client.chain_id(),
        rpc_url=rpc_url,
        start_block=start_block,
        pool_registry=pools,
        node_registry=nodes,
        policy_registry=policies,
        stake_manager=stakes,
        epoch_ledger=ledger,
        slashing_court=court,
        token=chosen,
    )


def fund(deployment: Deployment, payer: Wallet, tokens: Mapping[Address, int], *, ether: int = 100 * ETHER) -> None:
    """Give every address `ether` wei and its number of the test token's smallest units.  Anvil only."""
    client = ChainClient(deployment.rpc_url)
    token = Contracts(client, deployment).token
    client.request("anvil_setBalance", payer.address, hex(ether))
    for address, amount in tokens.items():
        client.request("anvil_setBalance", address, hex(ether))
        if amount:
            call = token.mint(address, amount)
            _send(client, payer, to=call.to, data=call.data)


def up(
    folder: Path, *, port: int = 0, block_time: float | None = 1.0, seed: str = DEVNET_SEED, is_fresh: bool = False
) -> tuple[Anvil, Deployment]:
    """Start the folder's chain, which goes on from `state.json`; with none there, deploy and write `deployment.json`.

    The deployer is `seed`'s "deployer".  `is_fresh` sets both files aside (`.old`) and begins a new chain.

    Raises OperatorError("devnet_runs") if the folder's chain runs already.
    Raises OperatorError("bad_state") or OperatorError("devnet_differs") if the two files cannot be gone on with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state, file = folder / "state.json", folder / "deployment.json"
    with ExitStack() as undo:  # whatever ends this early, Ctrl-C too, must not leave Anvil behind
        log = undo.enter_context((folder / "anvil.log").open("ab"))
        _lock(log, folder)
        if port:
            require_free_port(port)  # before anything is set aside
        if is_fresh:
            for path in (state, file):
                if path.exists():
                    path.replace(path.with_name(path.name + ".old"))
        known = _find_deployment(state, file)
        if known is None:
            undo.callback(state.unlink, missing_ok=True)  # after Anvil, which writes it at its end
        anvil = start_anvil(port, block_time=block_time, state=state, log=log)
        undo.callback(anvil.stop)
        (folder / "anvil.pid").write_text(f"{anvil.pid}\n")
        client = ChainClient(anvil.url)
        if known is None:
            deployer = derive_wallet(seed, "deployer")
            client.request("anvil_setBalance", deployer.address, hex(1000 * ETHER))
            deployment = _deploy_at_once(client, deployer, block_time)
        else:
            deployment = replace(known, rpc_url=anvil.url)
            _require_contracts(client, deployment, file)
        deployment.save(file)
        undo.pop_all()
    log.close()  # Anvil has it open: the lock is its own now
    return anvil, deployment


def _lock(log: IO[bytes], folder: Path) -> None:
    """Hold the folder for as long as this file is open: Anvil writes to it, so as long as Anvil lives."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = folder / "anvil.pid"
        stop = f"stop it with kill {pid.read_text().strip()}" if pid.exists() else "stop it first"
        raise OperatorError(
            "devnet_runs", f"the devnet of {folder} already runs", fix=f"Use it, {stop}, or name another --folder"
        ) from None


def _find_deployment(state: Path, file: Path) -> Deployment | None:
    """What the folder's chain holds; None where there is no chain yet."""
    if state.exists():
        try:
            json.loads(state.read_bytes())
        except ValueError as error:
            raise OperatorError(
                "bad_state",
                f"{state} is not a whole state: the node was killed while it wrote it",
                fix="Put back a copy of it, or begin a new chain with --fresh",
            ) from error
    if state.exists() == file.exists():
        return Deployment.load(file) if file.exists() else None
    there, gone = (state, file) if state.exists() else (file, state)
    raise OperatorError(
        "devnet_differs",
        f"{there} is of a chain whose {gone.name} is gone",
        fix="Put that file back, or begin a new chain with --fresh",
    )


def _require_contracts(client: ChainClient, deployment: Deployment, file: Path) -> None:
    addresses = [*deployment.get_contracts().values(), deployment.token]
    absent = [address for address in addresses if client.request("eth_getCode", address, "latest") == "0x"]
    if absent:
        raise OperatorError(
            "devnet_differs",
            f"{file} names contracts that the chain of state.json does not hold, {absent[0]} for one",
            fix="Put back the two files that belong together, or begin a new chain with --fresh",
        )


def predict_address(creator: Address, nonce: int) -> Address:
    """Where the contract of `creator`'s transaction `nonce` will be: keccak256(rlp([creator, nonce]))."""
    number = nonce.to_bytes((nonce.bit_length() + 7) // 8)
    body = b"\x94" + bytes.fromhex(creator[2:])
    body += number if 0 < nonce < 0x80 else bytes([0x80 + len(number)]) + number
    return Address(to_checksum_address(keccak(bytes([0xC0 + len(body)]) + body)[12:]))


def _deploy_at_once(client: ChainClient, deployer: Wallet, block_time: float | None) -> Deployment:
    """Mine each transaction at once while deploying: fifteen blocks of a second each are a long wait."""
    if block_time is None or block_time != int(block_time):
        return deploy(client.rpc_url, deployer)
    # In this order: an interval of 0 alone would stop mining altogether.
    client.request("evm_setIntervalMining", 0)
    client.request("evm_setAutomine", True)
    deployment = deploy(client.rpc_url, deployer)
    client.request("evm_setAutomine", False)
    client.request("evm_setIntervalMining", int(block_time))
    return deployment


def _create(client: ChainClient, deployer: Wallet, name: str, *args: object) -> Address:
    mined = _send(client, deployer, to=None, data=codec.encode_deployment(name, args))
    if mined.contract is None:
        raise ProtocolError("not_deployed", f"{name} has no address")
    return mined.contract


def _send(client: ChainClient, deployer: Wallet, *, to: Address | None, data: bytes) -> MinedTransaction:
    """Without an outbox: a deployment that breaks off is thrown away with its chain."""
    transaction: dict[str, object] = {
        "type": 2,
        "chainId": client.chain_id(),
        "nonce": client.count_transactions(deployer.address),
        "data": data,
        "value": 0,
    }
    if to is not None:
        transaction["to"] = to
    asked = {"from": deployer.address, "data": "0x" + data.hex()} | ({} if to is None else {"to": to})
    gas = int(client.request("eth_estimateGas", asked), 16)
    fee = 2 * client.get_block("latest").base_fee + client.get_priority_fee()
    priority_fee = client.get_priority_fee()
    signed = deployer.sign_transaction(
        transaction | {"gas": gas * 5 // 4, "maxFeePerGas": fee, "maxPriorityFeePerGas": priority_fee}
    )
    client.send_raw(signed.raw)
    deadline = time.monotonic() + MINE_TIMEOUT_S
    while (mined := client.find_mined(signed.hash)) is None:
        if time.monotonic() >= deadline:
            raise TransientError("not_mined", f"a transaction is in no block after {MINE_TIMEOUT_S} s")
        Flag().wait(0.02)
    if not mined.is_success:
        raise ProtocolError("reverted", f"transaction {signed.hash} failed")
    return mined
