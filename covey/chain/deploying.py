"""Deploys Covey's contracts to a chain: `covey deploy` to an existing one, `covey devnet up` to a new Anvil.

A deployment that is interrupted has cost only gas. Its contracts are not used, and the next deployment starts over.
"""

import time
from collections.abc import Callable
from threading import Event as Flag

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from covey.chain import abi_codec
from covey.chain.deployment import Deployment
from covey.chain.fees import FeeLimits
from covey.chain.json_rpc import BlockTag, ChainClient
from covey.chain.node_answers import Block, MinedTransaction
from covey.chain.wallet import Wallet
from covey.errors import ProtocolError, TransientError
from covey.protocol.ids import Address

MINE_SECONDS = 300.0
"""Timeout of one transaction, in seconds."""
FIRST_PAUSE, MAX_PAUSE = 0.02, 2.0
"""Seconds between two queries for a transaction. The first pause is short for Anvil. It then doubles, because public
nodes limit requests."""


def deploy(
    rpc_url: str,
    deployer: Wallet,
    *,
    token: Address | None = None,
    start: BlockTag = "finalized",
    say: Callable[[str], None] = lambda _: None,
) -> Deployment:
    """Deploy all contracts. The deployer needs ether, and becomes the admin, who can only pause new work.

    `token` is the ERC-20 token of the deployment's pools. None deploys a test token.

    `start` is the tag of the deployment's first block, whose hash identifies the chain. A final block is never
    reorganised. On a chain without final blocks, the newest block is the first, and its hash is not recorded.

    `say` is called with the chain and the first block, and with each address as soon as it is known. If the result is
    lost, its output is enough to use the deployment.

    Raises TransientError if the node does not respond or does not mine. Raises ProtocolError("reverted") with
    WrongDeployment if the deployer sends a different transaction meanwhile.
    """
    client = ChainClient(rpc_url)
    chain_id, known = client.chain_id(), _find_start(client, start)
    start_block = client.block_number() if known is None else known.number
    say(f"deploying to chain {chain_id} from block {start_block}")

    def create(name: str, *args: object) -> Address:
        say(f"deploying {name}")
        address = _create(client, deployer, name, *args, chain_id=chain_id)
        say(f"{name} deployed at {address}")
        return address

    chosen = token or create("TestToken")
    pools = create("PoolRegistry", deployer.address)
    nodes = create("NodeRegistry", pools)
    policies = create("PolicyRegistry", pools)
    # StakeManager is created with the addresses of the two contracts after it, so that nobody can set others later.
    nonce = client.count_transactions(deployer.address)
    successors = [predict_address(deployer.address, nonce + i) for i in (1, 2)]
    stakes = create("StakeManager", pools, *successors)
    ledger = create("EpochLedger", pools, nodes, stakes)
    court = create("SlashingCourt", pools, nodes, stakes)
    return Deployment(
        chain_id=chain_id,
        rpc_url=rpc_url,
        start_block=start_block,
        start_hash=None if known is None else known.hash,
        pool_registry=pools,
        node_registry=nodes,
        policy_registry=policies,
        stake_manager=stakes,
        epoch_ledger=ledger,
        slashing_court=court,
        token=chosen,
    )


def _find_start(client: ChainClient, tag: BlockTag) -> Block | None:
    """Return the block of a tag. None if the chain does not have final blocks."""
    try:
        return client.find_block(tag)
    except TransientError as error:
        if error.code != "chain_refused":
            raise
        return None


def predict_address(creator: Address, nonce: int) -> Address:
    """Return the address of the contract that `creator` deploys with `nonce`: keccak256(rlp([creator, nonce]))."""
    number = nonce.to_bytes((nonce.bit_length() + 7) // 8)
    body = b"\x94" + bytes.fromhex(creator[2:])
    body += number if 0 < nonce < 0x80 else bytes([0x80 + len(number)]) + number
    return Address(to_checksum_address(keccak(bytes([0xC0 + len(body)]) + body)[12:]))


def _create(client: ChainClient, deployer: Wallet, name: str, *args: object, chain_id: int) -> Address:
    mined = send_and_wait(client, deployer, to=None, data=abi_codec.encode_deployment(name, args), chain_id=chain_id)
    if mined.contract is None:
        raise ProtocolError("not_deployed", f"the deployment of {name} returned no address")
    return mined.contract


def send_and_wait(
    client: ChainClient, sender: Wallet, *, to: Address | None, data: bytes, chain_id: int
) -> MinedTransaction:
    """Send one transaction without an outbox and wait until it is mined. `to` is None for a new contract.

    The transaction is signed for `chain_id`. If that is not the node's chain, the node refuses the transaction.

    Raises TransientError("not_mined") after MINE_SECONDS, and ProtocolError("reverted") if the transaction fails.
    """
    draft = {"from": sender.address, "data": "0x" + data.hex()} | ({} if to is None else {"to": to})
    gas = client.estimate_draft(draft)
    fees = FeeLimits().choose(base_fee=client.get_block("latest").base_fee, priority_fee=client.get_priority_fee())
    transaction: dict[str, object] = {
        "type": 2,
        "chainId": chain_id,
        "nonce": client.count_transactions(sender.address),
        "data": data,
        "value": 0,
        "gas": gas * 5 // 4,
        "maxFeePerGas": fees.max_fee,
        "maxPriorityFeePerGas": fees.priority_fee,
    }
    signed = sender.sign_transaction(transaction if to is None else transaction | {"to": to})
    client.send_raw(signed.raw)
    deadline, pause = time.monotonic() + MINE_SECONDS, FIRST_PAUSE
    while (mined := client.find_mined(signed.hash)) is None:
        if time.monotonic() >= deadline:
            raise TransientError("not_mined", f"a transaction was not mined within {MINE_SECONDS:.0f} s")
        Flag().wait(pause)
        pause = min(MAX_PAUSE, 2 * pause)
    if not mined.is_success:
        raise ProtocolError("reverted", f"the transaction {signed.hash} was reverted")
    return mined
