"""A chain on this machine: Anvil up, contracts deployed and wired, accounts funded; called by `covey.cli` and demo.

Keys follow from a seed string, so they are worth nothing elsewhere.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from covey.chain import codec
from covey.chain.client import ChainClient, MinedTransaction
from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.wallet import Wallet, wallet_from_key
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol.ids import Address
from covey.runtime import find_free_ports

CHAIN_ID = 31337
ETHER = 10**18
START_TIMEOUT_S = 20.0
MINE_TIMEOUT_S = 60.0
_PACKAGES = ("linux-amd64", "linux-arm64", "darwin-arm64", "darwin-amd64")


@dataclass(frozen=True, kw_only=True, slots=True)
class Anvil:
    """A running node.  Example: url "http://127.0.0.1:8545"."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """End the process; with a state file it has written it by then.  Calling it twice is fine."""
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def find_anvil(*, configured: Path | None = None, roots: Sequence[Path] = ()) -> Path:
    """The Anvil binary: `configured` (setting COVEY_ANVIL), a platform package below one of `roots` or here, PATH."""
    if configured is not None:
        if os.access(configured, os.X_OK):
            return configured
        raise OperatorError("no_anvil", f"{configured} is no program", fix="Correct the setting COVEY_ANVIL")
    for root in (*roots, Path.cwd(), Path(__file__).resolve().parent.parent):
        for package in _PACKAGES:
            # The native binary: the npm wrapper would leave it running when it is stopped itself.
            binary = root / "node_modules" / "@foundry-rs" / f"anvil-{package}" / "bin" / "anvil"
            if os.access(binary, os.X_OK):
                return binary
    found = shutil.which("anvil")
    if found is None:
        raise OperatorError("no_anvil", "Anvil is not installed", fix='Run "make setup"')
    return Path(found)


def start_anvil(
    port: int = 0,
    *,
    block_time: float | None = 1.0,
    state: Path | None = None,
    log: Path | None = None,
    binary: Path | None = None,
) -> Anvil:
    """Start Anvil on 127.0.0.1 and wait until it answers.

    Port 0 takes a free one.  `block_time` is in seconds; None mines each transaction at once.  `state` is a file that
    is read at the start and written at the end.  Raise OperatorError when it does not come up.
    """
    chosen = find_free_ports(1)[0] if port == 0 else port
    command = [str(binary or find_anvil()), "--host", "127.0.0.1", "--port", str(chosen)]
    command += ["--chain-id", str(CHAIN_ID), "--accounts", "0", "--quiet"]
    if block_time is not None:
        command += ["--block-time", str(block_time)]
    if state is not None:
        command += ["--state", str(state)]
    with (log or Path(os.devnull)).open("ab") as output:
        # A session of its own: whoever started it ends it, Ctrl-C on the terminal does not.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    anvil = Anvil(url=f"http://127.0.0.1:{chosen}", process=process)
    with ExitStack() as undo:
        undo.callback(anvil.stop)
        _await_answer(anvil)
        undo.pop_all()
    return anvil


def derive_key(seed: str, name: str) -> bytes:
    """The private key of one role of a devnet.  Example: derive_key("demo", "operator")."""
    return keccak(text=f"covey-devnet/{seed}/{name}")


def derive_wallet(seed: str, name: str) -> Wallet:
    return wallet_from_key(derive_key(seed, name))


def deploy(rpc_url: str, deployer: Wallet) -> Deployment:
    """Deploy all contracts; the deployer becomes the admin, who may pause new work and nothing else.

    The deployer needs ether.  Raise TransientError when the node does not answer or mine.
    """
    client = ChainClient(rpc_url)
    start_block = client.block_number()
    admin = deployer.address
    token = _create(client, deployer, "TestToken")
    pools = _create(client, deployer, "PoolRegistry", admin)
    nodes = _create(client, deployer, "NodeRegistry", pools)
    policies = _create(client, deployer, "PolicyRegistry", pools)
    # StakeManager names the two that come after it, so that nobody can name others later.
    nonce = client.count_transactions(deployer.address)
    successors = [predict_address(deployer.address, nonce + i) for i in (1, 2)]
    stakes = _create(client, deployer, "StakeManager", pools, *successors)
    ledger = _create(client, deployer, "EpochLedger", pools, stakes)
    court = _create(client, deployer, "SlashingCourt", pools, nodes, stakes)
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
        token=token,
    )


def fund(deployment: Deployment, payer: Wallet, tokens: Mapping[Address, int], *, ether: int = 100 * ETHER) -> None:
    """Give every address `ether` wei and its number of the test token's smallest units.  Anvil only."""
    client = ChainClient(deployment.rpc_url)
    token = Contracts(client, deployment).token
    for address, amount in tokens.items():
        client.request("anvil_setBalance", address, hex(ether))
        if amount:
            call = token.mint(address, amount)
            _send(client, payer, to=call.to, data=call.data)


def up(
    folder: Path, *, port: int = 0, block_time: float | None = 1.0, seed: str = "devnet"
) -> tuple[Anvil, Deployment]:
    """Start a chain, deploy to it, and write `deployment.json` to the folder.  The deployer is `seed`'s "deployer"."""
    folder.mkdir(parents=True, exist_ok=True)
    anvil = start_anvil(port, block_time=block_time, log=folder / "anvil.log")
    with ExitStack() as undo:  # whatever ends this early, Ctrl-C too, must not leave Anvil behind
        undo.callback(anvil.stop)
        deployer = derive_wallet(seed, "deployer")
        client = ChainClient(anvil.url)
        client.request("anvil_setBalance", deployer.address, hex(1000 * ETHER))
        deployment = _deploy_at_once(client, deployer, block_time)
        deployment.save(folder / "deployment.json")
        undo.pop_all()
    return anvil, deployment


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


def _await_answer(anvil: Anvil) -> None:
    client = ChainClient(anvil.url, timeout_s=2.0)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        # The process first: another program may answer on the port that this one could not have.
        if anvil.process.poll() is not None:
            raise OperatorError("anvil_ended", "Anvil ended at once", fix="Choose a free port; see its log")
        try:
            chain = client.chain_id()
        except TransientError:
            if time.monotonic() >= deadline:
                raise OperatorError(
                    "anvil_silent", f"Anvil does not answer after {START_TIMEOUT_S} s", fix="See its log"
                ) from None
            Flag().wait(0.05)
        else:
            if chain != CHAIN_ID:
                raise OperatorError("wrong_chain", f"port of {anvil.url} is another chain's", fix="Choose a free port")
            return
