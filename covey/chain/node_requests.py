"""Requests to one or several nodes of a chain.

A request goes to the node that answered before. If that node does not answer, or its answer cannot be read, the next
one is tried within the time of one more request. A refusal is an answer. Nothing is repeated at the same node, because
the caller's loop does that.
"""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from covey.chain.node_answers import read_count
from covey.chain.node_pool import Node, NodePool, split_urls
from covey.chain.node_refusals import is_busy
from covey.chain.rpc_metrics import RpcMetrics
from covey.errors import CoveyError, OperatorError, TransientError
from covey.runtime.log import get_logger
from covey.runtime.urls import show_host

MAX_ANSWER_BYTES = 32 * 2**20
"""Largest answer of a node that is read. The logs of one block are smaller, and larger ranges of logs are halved."""
Result = TypeVar("Result")


class NodeRequests:
    """Base of `ChainClient`. `rpc_url` has one URL or several, separated by commas, the preferred one first.

    `timeout_s` is the time in seconds for a whole answer, which may have `max_bytes` bytes.
    """

    def __init__(self, rpc_url: str, *, timeout_s: float = 10.0, max_bytes: int = MAX_ANSWER_BYTES) -> None:
        self.rpc_url = rpc_url
        self.metrics = RpcMetrics()
        self._timeout_s = timeout_s
        self._pool = NodePool([Node(url, timeout_s=timeout_s, max_bytes=max_bytes) for url in split_urls(rpc_url)])
        self._pinned: Node | None = None
        self._require: Callable[..., None] | None = None

    def request(self, method: str, *params: Any) -> Any:
        """Send one request and return its result, of which nothing is checked.

        Raises TransientError, ProtocolError or OperatorError, depending on the node's response.
        """
        return self._read(lambda result: result, method, *params)

    def stick(self) -> Self:
        """Return a client of one node only, the best one now, for reads that must agree with each other.

        Every `HEADS_EVERY` seconds the nodes' newest blocks are compared first, and nodes that lag are not chosen.
        """
        if self._pinned is not None or len(self._pool.nodes) == 1:
            return self
        if self._pool.must_compare_heads():
            self._compare_heads()
        return self._pin(self._pool.rank()[0])

    def require_each(self, require: Callable[[Self], None]) -> None:
        """Call `require` with a client of each node, and later with one of each node that does not answer now.

        Raises the OperatorError of a node, or the first TransientError if no node answers. A node that fails the check
        later is not used.
        """
        failed: TransientError | None = None
        for node in self._pool.nodes:
            try:
                require(self._pin(node))
                node.is_checked = True
            except TransientError as error:
                failed = failed or error
        self._require = require
        if failed is not None and not any(node.is_checked for node in self._pool.nodes):
            raise failed

    def ask_node(self, node: Node, method: str, *params: Any) -> Any:
        """Send one request to one node. Tests override it to change what a node answers."""
        return node.connection.request(method, *params)

    def _read(self, convert: Callable[[Any], Result], method: str, *params: Any) -> Result:
        """Send one request and return its converted result.

        Raises TransientError("bad_answer") if the result cannot be converted.
        """
        return self._read_from(self._list_nodes(), convert, method, *params)[1]

    def _list_nodes(self) -> Sequence[Node]:
        return self._pool.rank() if self._pinned is None else (self._pinned,)

    def _read_from(
        self, nodes: Sequence[Node], convert: Callable[[Any], Result], method: str, *params: Any
    ) -> tuple[Node, Result]:
        """Ask the nodes in turn until one answers. Returns the node and its converted result."""
        deadline = time.monotonic() + self._timeout_s
        failed: TransientError | None = None
        for node in nodes:
            try:
                self._check(node)
                with self.metrics.measure(method):
                    result = self._convert(node, convert, method, self.ask_node(node, method, *params))
            except TransientError as error:
                if not _is_fault(error):
                    raise
                self._pool.record_fault(node, error)
                failed = failed or error
                if time.monotonic() >= deadline:
                    break
            else:
                self._pool.record_answer(node)
                return node, result
        if failed is None:
            raise ValueError("there is no node to ask")
        raise failed

    def _convert(self, node: Node, convert: Callable[[Any], Result], method: str, result: Any) -> Result:
        try:
            return convert(result)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise node.connection.build_bad_answer(method, ascii(result)) from error

    def _broadcast(self, send: Callable[[Self], None]) -> None:
        """Call `send` with a client of each node. One success is enough, and nodes that rest are then left out.

        Raises the first refusal if no node accepts, else the first fault.
        """
        is_accepted, errors = False, list[CoveyError]()
        for node in self._list_nodes():
            if is_accepted and self._pool.is_resting(node):
                continue
            try:
                send(self._pin(node))
                is_accepted = True
            except CoveyError as error:
                errors.append(error)
        if not is_accepted:
            raise next((error for error in errors if not _is_fault(error)), errors[0])

    def _ask_another(self, node: Node, ask: Callable[[Self], Result]) -> Result | None:
        """Return the answer of a node other than `node`. None if there is no other one, or none answers."""
        for other in self._pool.rank():
            if other is node or self._pool.is_resting(other):
                continue
            try:
                answer = ask(self._pin(other))
            except TransientError:
                continue
            self._pool.is_alone = False
            return answer
        if len(self._pool.nodes) > 1 and not self._pool.is_alone:
            self._pool.is_alone = True
            get_logger().warning("no second chain node confirms an empty answer", node=show_host(node.url))
        return None

    def _pin(self, node: Node) -> Self:
        """Return a client that asks only this node. Both clients share the nodes' health."""
        pinned = copy.copy(self)
        pinned.rpc_url, pinned._pinned = node.url, node
        return pinned

    def _check(self, node: Node) -> None:
        """Call the check of `require_each` for a node that did not answer then."""
        if node.is_checked or self._require is None:
            return
        client = self._pin(node)
        client._require = None
        try:
            self._require(client)
        except OperatorError as error:
            self._pool.exclude(node)
            raise TransientError("bad_answer", error.message) from error
        node.is_checked = True

    def _compare_heads(self) -> None:
        heads: dict[Node, int] = {}
        for node in self._pool.rank():
            if self._pool.is_resting(node):
                continue
            try:
                heads[node] = self._read_from((node,), read_count, "eth_blockNumber")[1]
            except TransientError:
                continue
        self._pool.record_heads(heads)


def _is_fault(error: CoveyError) -> bool:
    """Return whether an error is the node's, so that another node may do better."""
    if not isinstance(error, TransientError):
        return False
    return error.code in ("chain_unreachable", "bad_answer") or is_busy(error)
