"""The drawing block: the first block at or after a given time.

Coordinator and auditors both use this module to find it.
"""

import functools
from collections.abc import Callable, Iterable, Mapping

from covey.chain.json_rpc import ChainClient
from covey.chain.node_answers import Block


def find_first_blocks(client: ChainClient, timestamps: Iterable[int], *, head: Block) -> Mapping[int, Block]:
    """Return the first block at or after each time, as `find_first_block` does. Times without such a block are omitted.

    Each block is read only once.
    """
    get_block = functools.cache(client.get_block)
    blocks = {timestamp: _find_first(get_block, timestamp, head) for timestamp in timestamps}
    return {timestamp: block for timestamp, block in blocks.items() if block is not None}


def find_first_block(client: ChainClient, timestamp: int, *, head: Block) -> Block | None:
    """Return the first block whose time is `timestamp` or later, up to `head`. None if it has not been mined yet.

    The search goes backwards from the head, because the block is usually near it. It takes about 2 log2(distance)
    requests. Raises TransientError if the node does not respond, or has pruned an old block.
    """
    return _find_first(client.get_block, timestamp, head)


def _find_first(get_block: Callable[[int], Block], timestamp: int, head: Block) -> Block | None:
    later = head
    if later.timestamp < timestamp:
        return None
    step = 1
    while (earlier := get_block(max(0, later.number - step))).timestamp >= timestamp:
        if earlier.number == 0:
            return earlier
        later, step = earlier, 2 * step
    while later.number - earlier.number > 1:
        middle = get_block((later.number + earlier.number) // 2)
        if middle.timestamp >= timestamp:
            later = middle
        else:
            earlier = middle
    return later
