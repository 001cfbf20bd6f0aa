"""The block that draws: the first one from a time on.  Coordinator and auditors find it here alike."""

import functools
from collections.abc import Callable, Iterable, Mapping

from covey.chain.json_rpc import Block, ChainClient


def find_first_blocks(client: ChainClient, timestamps: Iterable[int], *, head: Block) -> Mapping[int, Block]:
    """`find_first_block` for many times, without those that have no block yet; each block is read once."""
    get_block = functools.cache(client.get_block)
    found = {each: _find_first(get_block, each, head) for each in timestamps}
    return {each: block for each, block in found.items() if block is not None}


def find_first_block(client: ChainClient, timestamp: int, *, head: Block) -> Block | None:
    """The first block whose time is `timestamp` or later, up to `head`; None while there is none.

    It is looked for backwards from the head, as it is mostly near: about 2 log2(distance) requests.
    Raises TransientError when the node does not answer, or has dropped an old block.
    """
    return _find_first(client.get_block, timestamp, head)


def _find_first(get_block: Callable[[int], Block], timestamp: int, head: Block) -> Block | None:
    found = head
    if found.timestamp < timestamp:
        return None
    step = 1
    while (earlier := get_block(max(0, found.number - step))).timestamp >= timestamp:
        if earlier.number == 0:
            return earlier
        found, step = earlier, 2 * step
    while found.number - earlier.number > 1:
        middle = get_block((found.number + earlier.number) // 2)
        if middle.timestamp >= timestamp:
            found = middle
        else:
            earlier = middle
    return found
