"""Thousands of transactions to Anvil at once, hundreds in a block, and none of them signed.

Anvil sends for any account while it impersonates all of them. A signature, a request and a block for each transaction
would take minutes for 10,000 nodes.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import httpx

from covey.chain.json_rpc import Call, ChainClient
from covey.errors import ProtocolError
from covey.protocol.ids import Address

PER_BLOCK = 250
"""Number of transactions in one block and one request."""
GAS = 2_000_000
"""Gas limit of each transaction. A registration needs about 150,000, and a pool with many validators a million."""
_BLOCK_GAS = 4 * PER_BLOCK * GAS
"""Gas limit of a block meanwhile. At half of it the price of gas would rise from block to block."""
_USUAL_BLOCK_GAS = 30_000_000
_ETHER = 10**18
_TIMEOUT_S = 120.0


def send_all(client: ChainClient, transactions: Iterable[tuple[Address, Call]]) -> int:
    """Have calls mined, those of one account in their order, and return their number.

    The chain mines nothing by itself meanwhile, and each transaction as it comes afterwards. Raises
    ProtocolError("reverted") if a call fails, and httpx.HTTPError if the node does not respond.
    """
    count = 0
    with _mine_by_hand(client), httpx.Client(trust_env=False, timeout=_TIMEOUT_S) as http:
        remaining = iter(transactions)
        while batch := list(islice(remaining, PER_BLOCK)):
            senders = sorted({sender for sender, _ in batch})
            _request_all(http, client, "anvil_setBalance", [[sender, hex(_ETHER)] for sender in senders])
            counts = _request_all(http, client, "eth_getTransactionCount", [[sender, "latest"] for sender in senders])
            nonces = {sender: int(count, 16) for sender, count in zip(senders, counts, strict=True)}
            sent = []
            for sender, call in batch:
                sent.append([_build_transaction(sender, call, nonces[sender])])
                nonces[sender] += 1
            hashes = _request_all(http, client, "eth_sendTransaction", sent)
            client.request("evm_mine")
            mined = _request_all(http, client, "eth_getTransactionReceipt", [[digest] for digest in hashes])
            for (sender, call), receipt in zip(batch, mined, strict=True):
                if receipt is None or int(receipt["status"], 16) != 1:
                    raise ProtocolError("reverted", f"{call.label} from {sender} was not mined or was reverted")
            count += len(batch)
    return count


@contextmanager
def _mine_by_hand(client: ChainClient) -> Iterator[None]:
    client.request("evm_setAutomine", False)
    client.request("evm_setBlockGasLimit", hex(_BLOCK_GAS))
    client.request("anvil_autoImpersonateAccount", True)
    try:
        yield
    finally:
        client.request("anvil_autoImpersonateAccount", False)
        client.request("evm_setBlockGasLimit", hex(_USUAL_BLOCK_GAS))
        client.request("evm_setAutomine", True)


def _build_transaction(sender: Address, call: Call, nonce: int) -> dict[str, str]:
    """Return a transaction with its nonce, which Anvil does not count right within one request of many."""
    data = "0x" + call.data.hex()
    return {"from": sender, "to": call.to, "data": data, "gas": hex(GAS), "nonce": hex(nonce)}


def _request_all(http: httpx.Client, client: ChainClient, method: str, parameters: list[list[Any]]) -> list[Any]:
    """Send many requests of one method as one, and return their results in their order."""
    asked = [
        {"jsonrpc": "2.0", "id": number, "method": method, "params": each} for number, each in enumerate(parameters)
    ]
    answer = http.post(client.rpc_url, json=asked).raise_for_status().json()
    results: list[Any] = [None] * len(asked)
    for each in answer:
        if "error" in each:
            raise ProtocolError("reverted", f"the chain node refused {method}: {each['error'].get('message')}")
        results[each["id"]] = each["result"]
    return results
