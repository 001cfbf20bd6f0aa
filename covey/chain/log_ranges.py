"""How many blocks one request for logs may cover.

Each node limits the blocks, the logs, the bytes or the seconds of a request, and words its refusal in its own way. Only
the refusal counts here, not its wording: a refused range is halved, and the size that was accepted is remembered.
"""

from collections.abc import Callable
from typing import TypeVar

from covey.chain.json_rpc import ChainClient
from covey.chain.node_refusals import is_busy
from covey.errors import TransientError
from covey.runtime.log import get_logger

GROW_AFTER = 16
"""Number of requests of the remembered size after which twice the size is tried."""
FEW_BLOCKS = 100
"""Size below which the log names the limit, because reading a long chain then takes many requests."""
Answer = TypeVar("Answer")


class LogRanges:
    """The largest range that a node has accepted. Example: `ranges.fit(lambda blocks: read(blocks), most=1000)`."""

    def __init__(self, client: ChainClient) -> None:
        self._client = client
        self._size: int | None = None
        """Number of blocks of the newest request that was accepted after a refusal. None before the first refusal."""
        self._accepted = 0
        """Number of requests of this size that were accepted since it was found."""
        self._is_reported = False

    def fit(self, read: Callable[[int], Answer], *, most: int) -> Answer:
        """Call `read` with a number of blocks from 1 to `most`, fewer after each refusal, and return its answer.

        Raises TransientError if the node refuses a single block, has reached its limit of requests, or does not respond
        to other requests either.
        """
        size = most if self._size is None else min(most, self._size)
        refused = False
        while True:
            try:
                answer = read(size)
            except TransientError as error:
                if size == 1 or is_busy(error):
                    raise
                self._client.block_number()  # Raises if the fault is not the range's.
                size, refused = size // 2, True
                continue
            self._record(size, refused=refused)
            return answer

    def _record(self, size: int, *, refused: bool) -> None:
        if refused:
            if size < FEW_BLOCKS and not self._is_reported:
                get_logger().warning("the chain node accepts few blocks per request for logs", blocks=size)
                self._is_reported = True
            self._size, self._accepted = size, 0
        elif size == self._size:
            self._accepted += 1
            if self._accepted >= GROW_AFTER:
                self._size, self._accepted = 2 * size, 0
