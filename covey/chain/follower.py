"""Follows the chain's events across reorganisations; called by `coordinator.chain_events` and other roles' loops.

It keeps no state: the caller applies a `Progress` and stores its cursor in one transaction, so a crash repeats a
poll and loses nothing.  It raises TransientError only.

A node that lags answers a range of block numbers that it does not have with no logs, and no error.  So the logs of the
newest blocks are asked for by each block's hash, which such a node refuses.
"""

from dataclasses import dataclass

from covey.chain import events
from covey.chain.deployment import Deployment
from covey.chain.finality import KEPT_BLOCKS, Finality
from covey.chain.json_rpc import Block, ChainClient, Log
from covey.errors import TransientError
from covey.protocol.ids import Hash

NEAR_BLOCKS = 16
"""Blocks below the newest one whose logs are asked for by hash: no node in use lags further behind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenBlock:
    """A block whose events, and all before it, have been applied."""

    number: int
    hash: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainProgress:
    """What one poll found.  Apply it in this order: roll back, apply the events, store the cursor."""

    rolled_back_to: int | None
    """Drop everything derived from blocks above this number; None when nothing was undone."""
    events: tuple[events.AnyEvent, ...]
    cursor: tuple[SeenBlock, ...]
    """Ascending; hand it to the next poll."""
    is_caught_up: bool
    """Whether the newest block that counts is behind the cursor; else poll again at once."""


class Follower:
    """Example: `progress = Follower(client, deployment).poll(())`."""

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

    def poll(self, cursor: tuple[SeenBlock, ...]) -> ChainProgress:
        """Read at most `max_range` blocks after the cursor; `()` starts at the deployment's first block."""
        head = self._client.get_block(self._finality)
        if cursor and (cursor[-1].number, cursor[-1].hash) == (head.number, head.hash):
            return ChainProgress(rolled_back_to=None, events=(), cursor=cursor, is_caught_up=True)
        known, has_moved = self._find_known(cursor)
        rolled_back_to = None
        if has_moved:
            rolled_back_to = known[-1].number if known else self._deployment.start_block - 1
        elif len(known) < len(cursor):
            # The node has no other block there, it merely has none yet: wait for it.
            return ChainProgress(rolled_back_to=None, events=(), cursor=cursor, is_caught_up=True)
        first = known[-1].number + 1 if known else self._deployment.start_block
        if first > head.number:
            return ChainProgress(rolled_back_to=rolled_back_to, events=(), cursor=known, is_caught_up=True)
        last = head
        if head.number - first >= self._max_range:
            last = self._client.get_block(first + self._max_range - 1)
        found = self._read_events(first, last, near=max(first, head.number - NEAR_BLOCKS + 1))
        seen = (*known, SeenBlock(number=last.number, hash=last.hash))
        return ChainProgress(
            rolled_back_to=rolled_back_to,
            events=found,
            cursor=seen[-KEPT_BLOCKS:],
            is_caught_up=last.number == head.number,
        )

    def _find_known(self, cursor: tuple[SeenBlock, ...]) -> tuple[tuple[SeenBlock, ...], bool]:
        """The part of the cursor that the chain still has, and whether another block stands where one was."""
        has_moved = False
        for i in range(len(cursor), 0, -1):
            seen = cursor[i - 1]
            block = self._client.find_block(seen.number)
            if block is not None and block.hash == seen.hash:
                return cursor[:i], has_moved
            has_moved = has_moved or block is not None
        return (), has_moved

    def _read_events(self, first: int, last: Block, *, near: int) -> tuple[events.AnyEvent, ...]:
        """The events of blocks first..last; those from the number `near` on by hash."""
        logs: list[Log] = []
        if first < near:
            logs += self._client.get_logs(self._addresses, first=first, last=min(near - 1, last.number))
        if near <= last.number:
            logs += self._read_near_logs(near, last)
        after = self._client.find_block(last.number)
        if after is None or after.hash != last.hash:
            raise _build_moved(last.number)
        decoded = (events.decode(log) for log in logs)
        return tuple(event for event in decoded if event is not None)

    def _read_near_logs(self, first: int, last: Block) -> list[Log]:
        """Walk back from `last` by the parents' hashes, so that all blocks are of one branch."""
        found: list[list[Log]] = []
        block = last
        while True:
            found.append(self._client.get_block_logs(self._addresses, block.hash))
            if block.number == first:
                return [log for logs in reversed(found) for log in logs]
            parent = self._client.get_block(block.number - 1)
            if parent.hash != block.parent_hash:
                raise _build_moved(block.number)
            block = parent


def _build_moved(number: int) -> TransientError:
    return TransientError("chain_moved", f"the chain was reorganised below block {number} while it was read")
