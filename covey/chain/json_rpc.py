"""Typed JSON-RPC requests to the nodes of a chain.

Raises TransientError if no node responds or the answer cannot be read, and ProtocolError("reverted") if a contract
refuses. It never repeats a request at the same node, because the caller's loop does. `node_requests.py` chooses the
node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eth_utils.crypto import keccak

from covey.chain import abi_codec
from covey.chain.deployment import Deployment
from covey.chain.logs_bloom import compute_bloom, is_full, may_contain
from covey.chain.node_answers import (
    Block,
    Log,
    MinedTransaction,
    read_block,
    read_bytes,
    read_count,
    read_input,
    read_int,
    read_logs,
    read_median_fee,
    read_mined,
)
from covey.chain.node_pool import Node
from covey.chain.node_refusals import SEND, is_busy, is_unknown_transaction
from covey.chain.node_requests import NodeRequests
from covey.errors import CoveyError, OperatorError, TransientError
from covey.protocol.eip712 import DOMAIN_VERSION
from covey.protocol.ids import Address, Hash, hash_from_bytes
from covey.runtime.urls import show_host

BlockTag = int | Literal["latest", "safe", "finalized", "pending", "earliest"]
Topic = Hash | Sequence[Hash] | None
"""Topic of a query for logs: one value, any of some values, or any value at all."""
_UNCLEAR_REFUSALS = ("chain_refused", "reverted", "insufficient_funds")
"""Codes of refusals to send that a node may also give for a transaction that it has or has just mined."""
DEFAULT_PRIORITY_FEE = 10**9
"""Priority fee in wei per gas if the node has neither a history of fees nor a suggestion."""
MIN_PRIORITY_FEE = 10**6
"""Smallest priority fee in wei per gas. Nodes drop transactions that offer less, also on chains where nobody pays."""
FEE_BLOCKS = 20
"""Number of newest blocks whose priority fees count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A state-changing call that has not been sent. Example: label "PolicyRegistry.publish"."""

    to: Address
    data: bytes
    label: str
    value: int = 0
    """Ether to send with the call, in wei."""


class ChainClient(NodeRequests):
    """Client of one node or several. Example: `ChainClient("http://127.0.0.1:8545").get_block("latest").number`."""

    def chain_id(self) -> int:
        return self._read(read_int, "eth_chainId")

    def block_number(self) -> int:
        return self._read(read_count, "eth_blockNumber")

    def get_block(self, tag: BlockTag) -> Block:
        """Return a block. Raises TransientError("no_block") if the node does not have it."""
        block = self.find_block(tag)
        if block is None:
            raise TransientError("no_block", f"the chain node does not have block {tag}")
        return block

    def find_block(self, tag: BlockTag) -> Block | None:
        """Return a block. None if the node does not have it."""
        number = tag if isinstance(tag, int) else None
        return self._read(lambda block: read_block(block, number=number), "eth_getBlockByNumber", _to_tag(tag), False)

    def call(
        self, to: Address, data: bytes, *, block: BlockTag = "latest", sender: Address | None = None, value: int = 0
    ) -> bytes:
        """Return the result of a read-only call. `value` is in wei."""
        transaction = {"to": to, "data": _to_hex(data)} | ({"value": hex(value)} if value else {})
        if sender is not None:
            transaction["from"] = sender
        return self._read(read_bytes, "eth_call", transaction, _to_tag(block))

    def get_logs(self, addresses: list[Address], *, first: int, last: int, topics: Sequence[Topic] = ()) -> list[Log]:
        """Return the logs of blocks first..last in chain order. None in `topics` matches any topic, and a list
        each of its topics.
        """
        query: dict[str, Any] = {"address": addresses, "fromBlock": hex(first), "toBlock": hex(last)}
        if topics:
            query["topics"] = list(topics)
        node, logs = self._read_from(self._list_nodes(), read_logs, "eth_getLogs", query)
        return logs or self._confirm_empty(node, query, last)

    def _confirm_empty(self, node: Node, query: dict[str, Any], last: int) -> list[Log]:
        """Return the logs that another node has for a query, to which `node` has answered with none.

        The other node must have block `last`. If there is no such node, the word of `node` counts.
        """

        def ask(other: ChainClient) -> list[Log]:
            if other.block_number() < last:
                raise TransientError("no_block", f"the chain node does not have block {last}")
            return other._read(read_logs, "eth_getLogs", query) or []

        logs = self._ask_another(node, ask)
        if logs:
            self._pool.record_fault(node, node.connection.build_bad_answer("eth_getLogs", "an empty list"))
        return logs or []

    def get_block_logs(self, addresses: list[Address], block: Block) -> list[Log]:
        """Return the logs of one block in order. Raises TransientError if the node does not have the block.

        A block's header has a bloom filter of its logs. An empty answer is checked against it, because a node that has
        not indexed a block yet answers with an empty list. Raises TransientError("bad_answer") if logs are missing.
        """
        logs = self._get_logs_of({"address": addresses}, block.hash)
        if logs or block.logs_bloom is None or not may_contain(block.logs_bloom, addresses):
            return logs
        if is_full(block.logs_bloom):  # The filter excludes nothing, and the block has thousands of logs.
            node = self._list_nodes()[0]
            return self._ask_another(node, lambda other: other._get_logs_of({"address": addresses}, block.hash)) or []
        everything = self._get_logs_of({}, block.hash)
        if block.logs_bloom & ~compute_bloom(everything):
            raise TransientError(
                "bad_answer", f"the chain node did not return all logs of block {block.number}, as its header shows"
            )
        return [log for log in everything if log.address in addresses]

    def _get_logs_of(self, query: dict[str, Any], block: Hash) -> list[Log]:
        logs = self._read(read_logs, "eth_getLogs", query | {"blockHash": block})
        if logs is None and self.request("eth_getBlockByHash", block, False) is None:
            raise TransientError("no_block", f"the chain node does not have block {block}")
        return logs or []

    def get_balance(self, address: Address) -> int:
        """Return the balance of an account in wei."""
        return self._read(read_int, "eth_getBalance", address, "latest")

    def has_code(self, address: Address) -> bool:
        """Return whether there is a contract at an address."""
        return bool(self.get_code(address))

    def get_code(self, address: Address) -> bytes:
        """Return the code of the contract at an address. Empty if there is none."""
        return self._read(lambda code: read_bytes(code or "0x"), "eth_getCode", address, "latest")

    def count_transactions(self, address: Address, block: BlockTag = "latest") -> int:
        """Return the account's next nonce at a block. "pending" also counts transactions in the node's pool."""
        return self._read(read_count, "eth_getTransactionCount", address, _to_tag(block))

    def estimate_gas(self, sender: Address, call: Call) -> int:
        """Return the gas that a call needs. Raises ProtocolError("reverted") if the call would fail now."""
        return self.estimate_draft(
            {"from": sender, "to": call.to, "data": _to_hex(call.data), "value": hex(call.value)}
        )

    def estimate_draft(self, draft: dict[str, str]) -> int:
        """Return the gas that a transaction in the form of JSON-RPC needs, for example one without "to".

        Raises ProtocolError("reverted") if it would fail now.
        """
        return self._read(read_count, "eth_estimateGas", draft)

    def get_priority_fee(self) -> int:
        """Return a priority fee in wei per gas. A transaction pays it in addition to the base fee.

        It is the median of the last FEE_BLOCKS blocks, which is what others paid. Without such a history it is the
        node's suggestion, else DEFAULT_PRIORITY_FEE. The caller bounds it (`FeeLimits`).
        """
        for convert, method, *params in (
            (read_median_fee, "eth_feeHistory", hex(FEE_BLOCKS), "latest", [50]),
            (read_int, "eth_maxPriorityFeePerGas"),
        ):
            try:
                fee = self._read(convert, method, *params)
            except TransientError as error:
                _require_refusal(error)
            else:
                if fee is not None:
                    return max(fee, MIN_PRIORITY_FEE)
        return DEFAULT_PRIORITY_FEE

    def send_raw(self, raw: bytes) -> None:
        """Send a signed transaction to all nodes. One that a node already has is not an error, whatever it says.

        Raises an error only if no node accepts it.
        """
        self._broadcast(lambda client: client._send_to_one(raw))

    def _send_to_one(self, raw: bytes) -> None:
        try:
            self.request(SEND, _to_hex(raw))
        except CoveyError as error:
            is_known = error.code == "already_known"
            if error.code in _UNCLEAR_REFUSALS:
                is_known = self._has_transaction(hash_from_bytes(keccak(raw)))
            if not is_known:
                raise

    def _has_transaction(self, transaction: Hash) -> bool:
        """Return whether the node has a transaction, in its pool or in a block. False if it does not say so."""
        try:
            return self.request("eth_getTransactionByHash", transaction) is not None
        except TransientError:
            return False

    def find_input(self, transaction: Hash, *, to: Address) -> bytes | None:
        """Return the input of a transaction. None if the node does not have it, or if it is not sent to `to`."""
        return self._read(lambda found: read_input(found, to=to), "eth_getTransactionByHash", transaction)

    def find_mined(self, transaction: Hash) -> MinedTransaction | None:
        """Return a mined transaction. None while it is not in a block."""
        try:
            return self._read(
                lambda receipt: read_mined(transaction, receipt), "eth_getTransactionReceipt", transaction
            )
        except TransientError as error:
            if is_unknown_transaction(error):
                return None
            raise


def open_node(deployment: Deployment, rpc_url: str | None = None) -> ChainClient:
    """Open a client as `open_chain` does, and check that the contracts have this release's version.

    Raises OperatorError("no_rpc"), OperatorError("wrong_chain") or OperatorError("old_deployment").
    Raises TransientError if the node does not respond, or does not have the contracts yet.
    """
    client = open_chain(deployment, rpc_url)
    require_version(client, deployment)
    return client


def open_chain(deployment: Deployment, rpc_url: str | None = None) -> ChainClient:
    """Open a client of the nodes at `rpc_url`, or of the deployment's, and check the chain of each.

    Raises OperatorError("no_rpc") or OperatorError("wrong_chain"). Raises TransientError if the node does not respond.
    """
    client = ChainClient(deployment.choose_node(rpc_url))
    client.require_each(lambda node: require_chain(node, deployment))
    return client


def require_chain(client: ChainClient, deployment: Deployment) -> None:
    """Check that a node has the deployment's chain. Raises as `open_chain` does."""
    chain_id = client.chain_id()
    if chain_id != deployment.chain_id:
        raise OperatorError(
            "wrong_chain",
            f"the node {show_host(client.rpc_url)} is on chain {chain_id}, but the contracts are "
            f"on chain {deployment.chain_id}",
            fix="Set --rpc, COVEY_RPC_URL or the setting rpc_url to a node of the contracts' chain",
        )
    require_start(client, deployment)


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


def _require_refusal(error: TransientError) -> None:
    """Raise the error again unless the node refused the request for good, or gave an answer that cannot be read."""
    if error.code not in ("chain_refused", "bad_answer") or is_busy(error):
        raise error


def _to_tag(tag: BlockTag) -> str:
    return hex(tag) if isinstance(tag, int) else tag


def _to_hex(data: bytes) -> str:
    return "0x" + data.hex()
