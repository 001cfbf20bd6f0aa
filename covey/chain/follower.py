"""Follows the chain's events across reorganisations; called by `coordinator.loop` and other roles' loops.

It keeps no state: the caller applies a `Progress` and stores its cursor in one transaction, so a crash repeats a
poll and loses nothing.  It raises TransientError only.
"""

from dataclasses import dataclass
from typing import Literal

from covey.chain import events
from covey.chain.client import Block, ChainClient
from covey.chain.deployment import Deployment
from covey.errors import TransientError
from covey.protocol.ids import Hash

KEPT_BLOCKS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenBlock:
    """A block whose events, and all before it, have been applied."""

    number: int
    hash: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
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
        finality: Literal["latest", "safe"] = "latest",
        max_range: int = 1000,
    ) -> None:
        self._client = client
        self._deployment = deployment
        self._finality: Literal["latest", "safe"] = finality
        self._max_range = max_range

    def poll(self, cursor: tuple[SeenBlock, ...]) -> Progress:
        """Read at most `max_range` blocks after the cursor; `()` starts at the deployment's first block."""
        head = self._client.get_block(self._finality)
        if cursor and (cursor[-1].number, cursor[-1].hash) == (head.number, head.hash):
            return Progress(rolled_back_to=None, events=(), cursor=cursor, is_caught_up=True)
        known, has_moved = self._find_known(cursor)
        rolled_back_to = None
        if has_moved:
            rolled_back_to = known[-1].number if known else self._deployment.start_block - 1
        elif len(known) < len(cursor):
            # The node has no other block there, it merely has none yet: wait for it.
            return Progress(rolled_back_to=None, events=(), cursor=cursor, is_caught_up=True)
        first = known[-1].number + 1 if known else self._deployment.start_block
        if first > head.number:
            return Progress(rolled_back_to=rolled_back_to, events=(), cursor=known, is_caught_up=True)
        last = head
        if head.number - first >= self._max_range:
            last = self._client.get_block(first + self._max_range - 1)
        found = self._read_events(first, last)
        seen = (*known, SeenBlock(number=last.number, hash=last.hash))
        return Progress(
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

    def _read_events(self, first: int, last: Block) -> tuple[events.AnyEvent, ...]:
        logs = self._client.get_logs(list(self._deployment.get_contracts().values()), first=first, last=last.number)
        after = self._client.find_block(last.number)
        if after is None or after.hash != last.hash:
            raise TransientError(
                "chain_moved", f"the chain was reorganised below block {last.number} while it was read"
            )
        decoded = (events.decode(log) for log in logs)
        return tuple(event for event in decoded if event is not None)
