"""The block that draws: the first one from a time on.  Coordinator and auditors find it here alike."""

from covey.chain.client import Block, ChainClient


def find_first_block(client: ChainClient, timestamp: int, *, head: Block) -> Block | None:
    """The first block whose time is `timestamp` or later, up to `head`; None while there is none.

    It is looked for backwards from the head, as it is mostly near: about 2 log2(distance) requests.
    Raises TransientError when the node does not answer, or has dropped an old block.
    """
    found = head
    if found.timestamp < timestamp:
        return None
    step = 1
    while (earlier := client.get_block(max(0, found.number - step))).timestamp >= timestamp:
        if earlier.number == 0:
            return earlier
        found, step = earlier, 2 * step
    while found.number - earlier.number > 1:
        middle = client.get_block((found.number + earlier.number) // 2)
        if middle.timestamp >= timestamp:
            found = middle
        else:
            earlier = middle
    return found
