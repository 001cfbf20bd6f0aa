"""How many blocks one request for logs may cover.

Each node limits the blocks, the logs, the bytes or the seconds of a request, and words its refusal in its own way. Only
the refusal counts here, not its wording: a refused range is halved, and the size that was accepted is remembered. The
size grows again, because a node can also refuse a range for a fault that passes.
"""

from collections.abc import Callable
from typing import TypeVar

from covey.chain.json_rpc import ChainClient
from covey.chain.node_refusals import is_busy
from covey.errors import TransientError
from covey.runtime.log import get_logger

MAX_WAIT = 16
"""Largest number of accepted requests after which twice the size is tried. The number doubles with each refusal."""
FEW_BLOCKS = 100
"""Size below which the log names the limit, because reading a long chain then takes many requests."""
_OF_THE_RANGE = ("chain_refused", "bad_answer", "chain_unreachable")
"""Codes of errors that a smaller range may avoid. An answer that is too large is unreadable, a late one unreachable."""
Answer = TypeVar("Answer")


class LogRanges:
    """The largest range that a node has accepted. Example: `ranges.fit(lambda blocks: read(blocks), most=1000)`."""

    def __init__(self, client: ChainClient) -> None:
        self._client = client
        self._size: int | None = None
        """Number of blocks of the newest request that was accepted after a refusal. None before the first refusal."""
        self._accepted = 0
        """Number of requests of this size that were accepted since it was found."""
        self._wait = 1
        """Number of requests of this size that must be accepted before twice the size is tried."""
        self._is_tried = False
        """Whether the size was doubled and no request of it has been accepted yet."""
        self._is_reported = False

    def fit(self, read: Callable[[int], Answer], *, most: int) -> Answer:
        """Call `read` with a number of blocks from 1 to `most`, fewer after each refusal, and return its answer.

        Raises TransientError if the node refuses a single block, has reached its limit of requests, or does not respond
        to other requests either. It is also raised if the node does not respond in time, because the caller has waited
        long enough. The next call then begins with half the blocks.
        """
        size = most if self._size is None else min(most, self._size)
        refused = False
        while True:
            try:
                answer = read(size)
            except TransientError as error:
                if size == 1 or error.code not in _OF_THE_RANGE or is_busy(error):
                    raise
                self._client.block_number()  # Raises if the fault is not the range's.
                size, refused = size // 2, True
                if error.code == "chain_unreachable":
                    self._shrink(size)
                    raise
                continue
            if refused:
                self._shrink(size)
            elif size == self._size:
                self._grow(size)
            return answer

    def _shrink(self, size: int) -> None:
        if size < FEW_BLOCKS and not self._is_reported:
            get_logger().warning("the chain node accepts few blocks per request for logs", blocks=size)
            self._is_reported = True
        self._size, self._accepted, self._is_tried = size, 0, False
        self._wait = min(MAX_WAIT, 2 * self._wait)

    def _grow(self, size: int) -> None:
        """Count an accepted request, and double the size after enough of them, or at once if doubling has worked."""
        self._wait = 1 if self._is_tried else self._wait
        self._accepted += 1
        if self._accepted >= self._wait:
            self._size, self._accepted, self._is_tried = 2 * size, 0, True
