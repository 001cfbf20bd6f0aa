"""A load-balanced provider over one real node, some of whose requests reach a backend that lags some blocks.

Such a backend answers as geth does: blocks and receipts that it lacks are null, logs of their numbers are an empty
list, and logs of an unknown hash are an error.
"""

from collections.abc import Callable
from typing import Any

from covey.chain.json_rpc import ChainClient
from covey.chain.node_pool import Node
from covey.errors import TransientError

_PLACE_OF_TAG = {
    "eth_call": 1,
    "eth_getBalance": 1,
    "eth_getCode": 1,
    "eth_getTransactionCount": 1,
    "eth_estimateGas": 1,
    "eth_getBlockByNumber": 0,
}


class LaggingClient(ChainClient):
    """A client of the provider.

    Example: `LaggingClient(url, lag=1, is_behind=lambda method: method == "eth_getLogs")`.
    """

    def __init__(self, rpc_url: str, *, lag: int = 1, is_behind: Callable[[str], bool] = lambda _: True) -> None:
        """Prepare both backends. `lag` is the number of blocks that the slow one lacks.

        `is_behind` says whether a request of a method reaches the slow one.
        """
        super().__init__(rpc_url)
        self._lag, self._is_behind = lag, is_behind

    def ask_node(self, node: Node, method: str, *params: Any) -> Any:
        if not self._is_behind(method):
            return super().ask_node(node, method, *params)
        newest = int(super().ask_node(node, "eth_blockNumber"), 16) - self._lag
        if method == "eth_blockNumber":
            return hex(newest)
        if method in _PLACE_OF_TAG:
            return self._ask_at(node, newest, method, list(params))
        if method == "eth_getLogs":
            return self._answer_logs(node, newest, dict(params[0]))
        answer = super().ask_node(node, method, *params)
        if method == "eth_getTransactionReceipt" and answer is not None and int(answer["blockNumber"], 16) > newest:
            return None
        return answer

    def _ask_at(self, node: Node, newest: int, method: str, params: list[Any]) -> Any:
        index = _PLACE_OF_TAG[method]
        tag = params[index] if len(params) > index else "latest"
        if tag in ("latest", "pending"):
            tag = hex(newest)
        if tag.startswith("0x") and int(tag, 16) > newest:
            return None
        return super().ask_node(node, method, *params[:index], tag, *params[index + 1 :])

    def _answer_logs(self, node: Node, newest: int, query: dict[str, Any]) -> Any:
        if "blockHash" in query:
            block = super().ask_node(node, "eth_getBlockByHash", query["blockHash"], False)
            if block is None or int(block["number"], 16) > newest:
                raise TransientError("chain_refused", "eth_getLogs: unknown block")
        elif int(query["toBlock"], 16) > newest:
            if int(query["fromBlock"], 16) > newest:
                return []
            query["toBlock"] = hex(newest)
        return super().ask_node(node, "eth_getLogs", query)
