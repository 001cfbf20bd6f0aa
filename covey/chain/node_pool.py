"""The addresses of a chain's nodes: their health, and the order in which a request tries them.

Requests stay with one node as long as it answers, because two nodes may be at different blocks. A node that gives no
answer, or one that cannot be read, rests for a while. The rest doubles with each further fault.
"""

import re
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from covey.errors import TransientError
from covey.runtime.log import get_logger
from covey.runtime.urls import show_host

if TYPE_CHECKING:
    from covey.chain.node_connection import NodeConnection

MAX_REST = 60.0
"""Maximum time in seconds for which a node rests after a fault."""
LAG_BLOCKS = 16
"""Number of blocks by which a node may be behind the others before it rests."""
HEADS_EVERY = 30.0
"""Minimum time in seconds between two comparisons of the nodes' newest blocks. A node that lags rests that long."""
_SEPARATOR = re.compile(r"[,\s]+(?=https?://)")


def split_urls(text: str) -> list[str]:
    """Return the URLs in a text such as "https://one.example,https://two.example", without repetitions."""
    return list(dict.fromkeys(_SEPARATOR.split(text.strip().rstrip(","))))


class Node:
    """One address and its health."""

    def __init__(self, url: str, *, timeout_s: float, max_bytes: int) -> None:
        self.url = url
        self.faults = 0
        """Number of faults since the newest answer: the worse of two nodes has more."""
        self.rests_until = 0.0
        """Time of the monotonic clock until which other nodes are tried first."""
        self.is_checked = False
        """Whether the node is known to have the deployment's chain."""
        self._timeout_s, self._max_bytes = timeout_s, max_bytes

    @cached_property
    def connection(self) -> "NodeConnection":
        from covey.chain.node_connection import NodeConnection

        return NodeConnection(self.url, timeout_s=self._timeout_s, max_bytes=self._max_bytes)


class NodePool:
    """Example: `for node in NodePool(nodes).rank(): ...`."""

    def __init__(self, nodes: list[Node], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`nodes` are in the order of preference."""
        self.nodes = tuple(nodes)
        self.is_alone = False
        """Whether the log says that no second node confirms what one answers."""
        self._current = nodes[0]
        self._clock = clock
        self._compared_at = float("-inf")

    def rank(self) -> list[Node]:
        """Return all nodes: the current one first, then the healthiest. Nodes that rest are last."""
        now = self._clock()
        return sorted(self.nodes, key=lambda node: (max(now, node.rests_until), node is not self._current, node.faults))

    def is_resting(self, node: Node) -> bool:
        return node.rests_until > self._clock()

    def record_answer(self, node: Node) -> None:
        """Note that a node has answered. It becomes the current one if the current one rests."""
        node.faults = 0
        if node is not self._current and self.is_resting(self._current):
            self._current = node

    def record_fault(self, node: Node, error: TransientError) -> None:
        """Note that a node did not answer, or wrongly. It rests for 1 s, and twice as long after each further fault."""
        node.faults += 1
        node.rests_until = self._clock() + min(MAX_REST, 2.0 ** (node.faults - 1))
        if node.faults == 1 and len(self.nodes) > 1:
            host = show_host(node.url)
            get_logger().warning("chain node at fault, others are tried first", node=host, code=error.code)

    def exclude(self, node: Node) -> None:
        """Let a node rest until the end of the process, because it has another chain."""
        node.rests_until = float("inf")

    def must_compare_heads(self) -> bool:
        """Return whether the nodes' newest blocks should be compared now. It returns True once in `HEADS_EVERY`."""
        now = self._clock()
        if len(self.nodes) == 1 or now - self._compared_at < HEADS_EVERY:
            return False
        self._compared_at = now
        return True

    def record_heads(self, heads: Mapping[Node, int]) -> None:
        """Let nodes rest that are more than `LAG_BLOCKS` behind. `heads` has the number of each one's newest block.

        With three nodes or more, the second highest number counts, so that one node's false number changes nothing.
        """
        if len(heads) < 2:
            return
        reference = sorted(heads.values())[-2 if len(heads) > 2 else -1]
        for node, head in heads.items():
            if reference - head > LAG_BLOCKS:
                node.rests_until = max(node.rests_until, self._clock() + HEADS_EVERY)
                get_logger().warning("chain node lags", node=show_host(node.url), blocks=reference - head)
