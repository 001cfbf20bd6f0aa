"""Follows the chain's events across reorganisations.

Its only state is the number of blocks that the node accepts in one request. The caller applies a `ChainProgress` and
stores its cursor in one transaction, so a crash repeats a poll and loses nothing. It raises only TransientError.

For blocks that it does not have, a lagging node returns no logs and no error. The logs of the newest blocks are
therefore requested by block hash, because such a node refuses an unknown hash. An empty answer for one of these blocks
must agree with the bloom filter of its header. Each poll reads from one node.
"""

from dataclasses import dataclass

from covey.chain import events
from covey.chain.deployment import Deployment
from covey.chain.finality import KEPT_BLOCKS, Finality
from covey.chain.json_rpc import ChainClient
from covey.chain.log_ranges import LogRanges
from covey.chain.node_answers import Block, Log
from covey.errors import TransientError
from covey.protocol.ids import Hash

NEAR_BLOCKS = 16
"""Number of newest blocks whose logs are requested by hash. Nodes lag by fewer blocks than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenBlock:
    """A block whose events, and all earlier events, have been applied."""

    number: int
    hash: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainProgress:
    """Result of one poll. Apply it in this order: roll back, apply the events, store the cursor."""

    rolled_back_to: int | None
    """Number of the newest block that remains valid.

    Drop everything derived from later blocks. None if no block was removed.
    """
    events: tuple[events.AnyEvent, ...]
    """New events, in the order of the chain."""
    cursor: tuple[SeenBlock, ...]
    """Newest blocks that have been read, in ascending order. Pass them to the next poll."""
    read_until: int
    """Time of the newest block that this poll has read, in Unix seconds. 0 if it has read none."""
    is_caught_up: bool
    """Whether the cursor has reached the newest final block. If not, poll again at once."""


class Follower:
    """Reads the events of one deployment. Example: `progress = Follower(client, deployment).poll(())`."""

    def __init__(
        self,
        client: ChainClient,
        deployment: Deployment,
        *,
        finality: Finality = "latest",
        max_range: int = 1000,
    ) -> None:
        self._client = client
        self._deployment = deployment
        self._addresses = list(deployment.get_contracts().values())
        self._finality: Finality = finality
        self._max_range = max_range
        self._ranges = LogRanges(client)

    def poll(self, cursor: tuple[SeenBlock, ...]) -> ChainProgress:
        """Read at most `max_range` blocks after `cursor`, and fewer if the node does not accept as many.

        An empty cursor, `()`, starts at the deployment's first block.
        """
        client = self._client.stick()
        head = client.get_block(self._finality)
        if cursor and (cursor[-1].number, cursor[-1].hash) == (head.number, head.hash):
            return _build_empty(cursor)
        known, has_moved = self._find_known(client, cursor)
        rolled_back_to = None
        if has_moved:
            rolled_back_to = known[-1].number if known else self._deployment.start_block - 1
        elif len(known) < len(cursor):
            # The node has no other block there, it only lags. Wait until it has caught up.
            return _build_empty(cursor)
        first = known[-1].number + 1 if known else self._deployment.start_block
        if first > head.number:
            return _build_empty(known, rolled_back_to=rolled_back_to)
        last = head
        if head.number - first >= self._max_range:
            last = client.get_block(first + self._max_range - 1)
        last, new_events = self._read_events(client, first, last, near=max(first, head.number - NEAR_BLOCKS + 1))
        seen = (*known, SeenBlock(number=last.number, hash=last.hash))
        return ChainProgress(
            rolled_back_to=rolled_back_to,
            events=new_events,
            cursor=seen[-KEPT_BLOCKS:],
            read_until=last.timestamp,
            is_caught_up=last.number == head.number,
        )

    def _find_known(self, client: ChainClient, cursor: tuple[SeenBlock, ...]) -> tuple[tuple[SeenBlock, ...], bool]:
        """Return the blocks of the cursor that the chain still has, and whether the chain has replaced any."""
        has_moved = False
        for i in range(len(cursor), 0, -1):
            seen = cursor[i - 1]
            block = client.find_block(seen.number)
            if block is not None and block.hash == seen.hash:
                return cursor[:i], has_moved
            has_moved = has_moved or block is not None
        return (), has_moved

    def _read_events(
        self, client: ChainClient, first: int, last: Block, *, near: int
    ) -> tuple[Block, tuple[events.AnyEvent, ...]]:
        """Return the last block that was read, and the events of blocks first..last or of as many as the node accepts.

        Blocks from number `near` on are read by hash.
        """
        logs: list[Log] = []
        if first < near:
            far = min(near - 1, last.number)
            end, logs = self._ranges.fit(
                lambda blocks: self._read_far_logs(client, first, min(far, first + blocks - 1), last),
                most=far - first + 1,
            )
            last = end if end.number < far else last
        if near <= last.number:
            logs += self._read_near_logs(client, near, last)
        after = client.find_block(last.number)
        if after is None or after.hash != last.hash:
            raise _build_moved(last.number)
        decoded = (events.decode(log) for log in logs)
        return last, tuple(event for event in decoded if event is not None)

    def _read_far_logs(self, client: ChainClient, first: int, end: int, last: Block) -> tuple[Block, list[Log]]:
        """Return block `end`, as it was before the logs of first..end were read, and these logs."""
        block = last if end == last.number else client.get_block(end)
        return block, client.get_logs(self._addresses, first=first, last=end)

    def _read_near_logs(self, client: ChainClient, first: int, last: Block) -> list[Log]:
        """Read logs from `last` backwards along the parent hashes, so that all blocks belong to one branch."""
        logs_by_block: list[list[Log]] = []
        block = last
        while True:
            logs_by_block.append(client.get_block_logs(self._addresses, block))
            if block.number == first:
                return [log for logs in reversed(logs_by_block) for log in logs]
            parent = client.get_block(block.number - 1)
            if parent.hash != block.parent_hash:
                raise _build_moved(block.number)
            block = parent


def _build_empty(cursor: tuple[SeenBlock, ...], *, rolled_back_to: int | None = None) -> ChainProgress:
    return ChainProgress(rolled_back_to=rolled_back_to, events=(), cursor=cursor, read_until=0, is_caught_up=True)


def _build_moved(number: int) -> TransientError:
    return TransientError("chain_moved", f"the chain was reorganised below block {number} while it was being read")
