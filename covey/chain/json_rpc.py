"""Typed JSON-RPC requests to one node of the chain.

Raises TransientError if the node does not respond, and ProtocolError("reverted") if a contract refuses. It never
retries, because the caller's loop does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eth_utils.address import to_checksum_address
from web3 import HTTPProvider
from web3.exceptions import Web3Exception
from web3.types import RPCEndpoint

from covey.chain import abi_codec
from covey.chain.deployment import Deployment
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from covey.protocol.eip712 import DOMAIN_VERSION
from covey.protocol.ids import Address, Hash
from covey.runtime.urls import show_host

BlockTag = int | Literal["latest", "safe", "finalized", "pending", "earliest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Header of a block. `timestamp` is in Unix seconds, and `base_fee` in wei per gas."""

    number: int
    hash: Hash
    parent_hash: Hash
    timestamp: int
    base_fee: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """One log entry that is not decoded."""

    address: Address
    topics: tuple[Hash, ...]
    data: bytes
    block_number: int
    block_hash: Hash
    transaction_hash: Hash
    log_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MinedTransaction:
    """Ethereum's receipt of a transaction. It is not called a receipt, because in Covey nodes sign receipts."""

    hash: Hash
    block_number: int
    block_hash: Hash
    is_success: bool
    gas_used: int
    contract: Address | None
    """Address of the deployed contract. None if the transaction deployed none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A state-changing call that has not been sent. Example: label "PolicyRegistry.publish"."""

    to: Address
    data: bytes
    label: str
    value: int = 0
    """Ether to send with the call, in wei."""


class ChainClient:
    """Client of one node. Example: `ChainClient("http://127.0.0.1:8545").get_block("latest").number`."""

    def __init__(self, rpc_url: str, *, timeout_s: float = 10.0) -> None:
        self.rpc_url = rpc_url
        self._provider = HTTPProvider(
            rpc_url, request_kwargs={"timeout": timeout_s}, exception_retry_configuration=None
        )

    def request(self, method: str, *params: Any) -> Any:
        """Send one request and return its result.

        Raises TransientError, ProtocolError or OperatorError, depending on the node's response.
        """
        try:
            answer = self._provider.make_request(RPCEndpoint(method), list(params))
        # The errors of requests are OSErrors. ValueError is raised for an answer that is not JSON.
        except (OSError, ValueError, Web3Exception) as error:
            raise TransientError(
                "chain_unreachable",
                f"the chain node {show_host(self.rpc_url)} did not respond to {method}: "
                f"{type(error).__name__}. Start that node, or correct rpc_url in the deployment "
                "file or the settings, or COVEY_RPC_URL",
            ) from error
        if "error" in answer:
            raise _to_error(method, dict(answer["error"]))
        return answer.get("result")

    def chain_id(self) -> int:
        return int(self.request("eth_chainId"), 16)

    def block_number(self) -> int:
        return int(self.request("eth_blockNumber"), 16)

    def get_block(self, tag: BlockTag) -> Block:
        """Return a block. Raises TransientError("no_block") if the node does not have it."""
        block = self.find_block(tag)
        if block is None:
            raise TransientError("no_block", f"the chain node does not have block {tag}")
        return block

    def find_block(self, tag: BlockTag) -> Block | None:
        """Return a block. None if the node does not have it."""
        block = self.request("eth_getBlockByNumber", _to_tag(tag), False)
        if block is None:
            return None
        return Block(
            number=int(block["number"], 16),
            hash=Hash(block["hash"]),
            parent_hash=Hash(block["parentHash"]),
            timestamp=int(block["timestamp"], 16),
            base_fee=int(block.get("baseFeePerGas", "0x0"), 16),
        )

    def call(
        self, to: Address, data: bytes, *, block: BlockTag = "latest", sender: Address | None = None, value: int = 0
    ) -> bytes:
        """Return the result of a read-only call. `value` is in wei."""
        transaction = {"to": to, "data": _to_hex(data)} | ({"value": hex(value)} if value else {})
        if sender is not None:
            transaction["from"] = sender
        return _from_hex(self.request("eth_call", transaction, _to_tag(block)))

    def get_logs(
        self, addresses: list[Address], *, first: int, last: int, topics: Sequence[Hash | None] = ()
    ) -> list[Log]:
        """Return the logs of blocks first..last in chain order. None in `topics` matches any topic."""
        query: dict[str, Any] = {"address": addresses, "fromBlock": hex(first), "toBlock": hex(last)}
        if topics:
            query["topics"] = list(topics)
        return self._list_logs(query)

    def get_block_logs(self, addresses: list[Address], block: Hash) -> list[Log]:
        """Return the logs of one block in order. Raises TransientError if the node does not have the block."""
        return self._list_logs({"address": addresses, "blockHash": block})

    def _list_logs(self, query: dict[str, Any]) -> list[Log]:
        logs = [_to_log(entry) for entry in self.request("eth_getLogs", query)]
        return sorted(logs, key=lambda log: (log.block_number, log.log_index))

    def get_balance(self, address: Address) -> int:
        """Return the balance of an account in wei."""
        return int(self.request("eth_getBalance", address, "latest"), 16)

    def has_code(self, address: Address) -> bool:
        """Return whether there is a contract at an address."""
        return bool(self.get_code(address))

    def get_code(self, address: Address) -> bytes:
        """Return the code of the contract at an address. Empty if there is none."""
        return _from_hex(self.request("eth_getCode", address, "latest") or "0x")

    def count_transactions(self, address: Address, block: BlockTag = "latest") -> int:
        """Return the account's next nonce at a block. "pending" also counts transactions in the node's pool."""
        return int(self.request("eth_getTransactionCount", address, _to_tag(block)), 16)

    def estimate_gas(self, sender: Address, call: Call) -> int:
        """Return the gas that a call needs. Raises ProtocolError("reverted") if the call would fail now."""
        transaction = {"from": sender, "to": call.to, "data": _to_hex(call.data), "value": hex(call.value)}
        return int(self.request("eth_estimateGas", transaction), 16)

    def get_priority_fee(self) -> int:
        """Return the suggested priority fee in wei per gas. A transaction pays it in addition to the base fee."""
        return int(self.request("eth_maxPriorityFeePerGas"), 16)

    def send_raw(self, raw: bytes) -> None:
        """Broadcast a signed transaction. A transaction that the node already has is not an error."""
        try:
            self.request("eth_sendRawTransaction", _to_hex(raw))
        except ProtocolError as error:
            if error.code != "already_known":
                raise

    def find_mined(self, transaction: Hash) -> MinedTransaction | None:
        """Return a mined transaction. None while it is not in a block."""
        receipt = self.request("eth_getTransactionReceipt", transaction)
        if receipt is None or receipt.get("blockNumber") is None:
            return None
        contract = receipt.get("contractAddress")
        return MinedTransaction(
            hash=transaction,
            block_number=int(receipt["blockNumber"], 16),
            block_hash=Hash(receipt["blockHash"]),
            is_success=int(receipt["status"], 16) == 1,
            gas_used=int(receipt["gasUsed"], 16),
            contract=Address(to_checksum_address(contract)) if contract else None,
        )


def open_node(deployment: Deployment, rpc_url: str | None = None) -> ChainClient:
    """Open a client as `open_chain` does, and check that the contracts have this release's version.

    Raises OperatorError("no_rpc"), OperatorError("wrong_chain") or OperatorError("old_deployment").
    Raises TransientError if the node does not respond, or does not have the contracts yet.
    """
    client = open_chain(deployment, rpc_url)
    require_version(client, deployment)
    return client


def open_chain(deployment: Deployment, rpc_url: str | None = None) -> ChainClient:
    """Open a client of the node at `rpc_url`, or of the deployment's node, and check its chain.

    Raises OperatorError("no_rpc") or OperatorError("wrong_chain"). Raises TransientError if the node does not respond.
    """
    client = ChainClient(deployment.choose_node(rpc_url))
    chain_id = client.chain_id()
    if chain_id != deployment.chain_id:
        raise OperatorError(
            "wrong_chain",
            f"the node {show_host(client.rpc_url)} is on chain {chain_id}, but the contracts are "
            f"on chain {deployment.chain_id}",
            fix="Set --rpc, COVEY_RPC_URL or the setting rpc_url to a node of the contracts' chain",
        )
    require_start(client, deployment)
    return client


def require_start(client: ChainClient, deployment: Deployment) -> None:
    """Check that the node's block `start_block` has the deployment's `start_hash`.

    All devnets have one chain id and equal contract addresses, and only this hash differs. The check is skipped if the
    deployment has no hash, or if the node has newer blocks but not this one.

    Raises OperatorError("wrong_chain") if the hash differs. Raises TransientError("no_block") if the node's chain is
    still shorter.
    """
    if deployment.start_hash is None:
        return
    number = deployment.start_block
    block = client.find_block(number)
    if block is None:
        if client.block_number() < number:
            raise TransientError("no_block", f"the chain node does not have block {number} yet")
        return
    if block.hash != deployment.start_hash:
        raise OperatorError(
            "wrong_chain",
            f"the node {show_host(client.rpc_url)} has another chain with the id {deployment.chain_id}: "
            f"its block {number} has the hash {block.hash}, but the contracts' chain has {deployment.start_hash}",
            fix="Stop the node that listens there and start that of the contracts' chain, or set --rpc, COVEY_RPC_URL "
            "or the setting rpc_url to it",
        )


def require_version(client: ChainClient, deployment: Deployment) -> None:
    """Check that the EIP-712 domain of EpochLedger has DOMAIN_VERSION. Signatures for other versions would be refused.

    Raises OperatorError("old_deployment") if the version differs, and TransientError("no_contract") if there is no
    contract at the address.
    """
    address = deployment.epoch_ledger
    data = client.call(address, abi_codec.encode_call("EpochLedger", "eip712Domain", ()))
    try:
        _, _, version, *_ = abi_codec.decode_result("EpochLedger", "eip712Domain", data)
    except ValueError as error:
        raise TransientError("no_contract", f"there is no contract EpochLedger at {address}") from error
    if version != DOMAIN_VERSION:
        raise OperatorError(
            "old_deployment",
            f"the contracts have version {version[:16]!r}, but this release supports version {DOMAIN_VERSION!r}",
            fix="Use contracts of this version, or run the release that deployed them",
        )


def _to_error(method: str, error: dict[str, Any]) -> CoveyError:
    message = str(error.get("message", ""))
    text = message.lower()
    data = error.get("data")
    # Hexadecimal data is the contract's revert data. Some nodes send a longer text instead, or nothing.
    if error.get("code") == 3 or "revert" in text:
        reason = (
            abi_codec.describe_revert(_from_hex(data)) if isinstance(data, str) and data.startswith("0x") else message
        )
        return ProtocolError("reverted", reason)
    if "already known" in text or "already imported" in text:
        return ProtocolError("already_known", message)
    if "nonce too low" in text:
        return ProtocolError("nonce_too_low", message)
    if "underpriced" in text or "less than block base fee" in text:
        return ProtocolError("underpriced", message)
    if "insufficient funds" in text:
        return OperatorError("insufficient_funds", message, fix="Send ether to the account that pays the gas")
    return TransientError("chain_refused", f"the chain node refused {method}: {message}")


def _to_log(entry: dict[str, Any]) -> Log:
    return Log(
        address=Address(to_checksum_address(entry["address"])),
        topics=tuple(Hash(topic) for topic in entry["topics"]),
        data=_from_hex(entry["data"]),
        block_number=int(entry["blockNumber"], 16),
        block_hash=Hash(entry["blockHash"]),
        transaction_hash=Hash(entry["transactionHash"]),
        log_index=int(entry["logIndex"], 16),
    )


def _to_tag(tag: BlockTag) -> str:
    return hex(tag) if isinstance(tag, int) else tag


def _to_hex(data: bytes) -> str:
    return "0x" + data.hex()


def _from_hex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
