"""Wakes the long polls of nodes when a task is leased to them.

One query after a commit finds the nodes of all offered leases, whatever the number of polls.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from coordinator.api.process.changes import Changes
from covey.protocol.ids import Address


class LeaseWaiter:
    """The wait of one long poll for a lease. Example: `while await offer.wait(5.0): ...`."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._is_over = False
        self.has_left = False
        """Whether the client has left."""

    async def wait(self, seconds: float) -> bool:
        """Return True once a lease is offered. Return False after `seconds` seconds, or when the poll has ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        if self._is_over:
            return False
        self._event.clear()
        return True

    def announce(self) -> None:
        """Wake the poll, so that it collects its lease."""
        self._event.set()

    def leave(self) -> None:
        """End the poll, because its client has left."""
        self.has_left = True
        self.end()

    def end(self) -> None:
        """End the poll."""
        self._is_over = True
        self._event.set()


class LeaseWaiters:
    """The long polls of nodes in this process. Example: `with offers.open(node) as offer: ...`."""

    def __init__(self, changes: Changes, *, note_count: Callable[[int], None] = lambda _: None) -> None:
        """`note_count` is given the number of nodes with an open poll whenever it may have changed."""
        self._open: dict[Address, set[LeaseWaiter]] = {}
        self._is_over, self._note_count = False, note_count
        changes.watch(lambda rows: rows.list_offered_nodes(), self._announce, is_needed=lambda: bool(self._open))

    @contextmanager
    def open(self, node: Address) -> Iterator[LeaseWaiter]:
        """Open the long poll of a node."""
        offer, own = LeaseWaiter(), self._open.setdefault(node, set())
        own.add(offer)
        self._note_count(len(self._open))
        if self._is_over:
            offer.end()
        try:
            yield offer
        finally:
            own.discard(offer)
            if not own and self._open.get(node) is own:
                del self._open[node]
            self._note_count(len(self._open))

    def end(self) -> None:
        """End all polls, because this process ends."""
        self._is_over = True
        for own in self._open.values():
            for offer in own:
                offer.end()

    def _announce(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            for offer in self._open.get(Address(node), ()):
                offer.announce()
