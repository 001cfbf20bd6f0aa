"""What the worker has in hand: leases that wait for the engine, and what the engine made of others.

Three cycles of `loop` share it: while the engine generates, the next lease is claimed and the last work handed in.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from covey.protocol.ids import LeaseId
from covey.protocol.wire import TaskOrder
from worker.service import Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A lease and when it was collected, by a clock that nobody sets."""

    order: TaskOrder
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What the engine made of a task."""

    order: TaskOrder
    drafts: tuple[Draft, ...]
    since: float = 0.0
    """When its lease was collected, as in `Held`."""


@dataclass(kw_only=True)
class Pipeline:
    """Leases go from `claimed` to `made`, and leave when their parcel is on the disk."""

    together: int
    """Tasks that are generated in one batch at most."""
    ahead: int
    """Further leases that are claimed while the engine is busy."""
    lease_seconds: float
    clock: Callable[[], float] = time.monotonic
    claimed: list[Held] = field(default_factory=list)
    """In order; those that the engine works on are the first."""
    made: list[Made] = field(default_factory=list)
    generation_seconds: float = 0.0
    """That the last batch took."""
    claims_over: asyncio.Event = field(default_factory=asyncio.Event)
    work_over: asyncio.Event = field(default_factory=asyncio.Event)
    all_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def orders(self) -> list[TaskOrder]:
        """All that are in hand and not signed for."""
        return [held.order for held in self.claimed] + [made.order for made in self.made]

    @property
    def leases(self) -> list[LeaseId]:
        """Of `orders`."""
        return [order.lease for order in self.orders]

    def has_room(self, unsent: int) -> bool:
        """Whether to ask for one more lease, with `unsent` parcels on the disk.

        One at a time where a lease might run out while it waits for the batch before it; none at all while more is
        unsent than the engine makes at once.
        """
        is_quick = 3 * self.generation_seconds < self.lease_seconds
        most = self.together + self.ahead if is_quick else 1
        return len(self.claimed) < most and len(self.made) + unsent <= self.together

    def hold(self, order: TaskOrder) -> None:
        """A lease was collected."""
        self.claimed.append(Held(order=order, since=self.clock()))

    def drop_overdue(self) -> list[TaskOrder]:
        """Forget the leases that ran out, as they do while an engine or the chain does not answer; returns them."""
        oldest = self.clock() - self.lease_seconds
        overdue = [held.order for held in self.claimed if held.since < oldest]
        overdue += [made.order for made in self.made if made.since < oldest]
        self.claimed = [held for held in self.claimed if held.since >= oldest]
        self.made = [made for made in self.made if made.since >= oldest]
        return overdue

    def get_batch(self) -> list[TaskOrder]:
        """The tasks to generate now: the oldest, and others of its policy."""
        orders = [held.order for held in self.claimed]
        return [order for order in orders if order.policy_version == orders[0].policy_version][: self.together]

    def finish(self, made: Sequence[Made], seconds: float) -> None:
        """The engine is done with a batch."""
        since = {held.order.lease: held.since for held in self.claimed}
        self.let_go([each.order for each in made])
        self.made += [replace(each, since=since[each.order.lease]) for each in made if each.order.lease in since]
        self.generation_seconds = seconds

    def let_go(self, orders: Sequence[TaskOrder]) -> None:
        """These leases are not in hand any more."""
        gone = {order.lease for order in orders}
        self.claimed = [held for held in self.claimed if held.order.lease not in gone]
        self.made = [made for made in self.made if made.order.lease not in gone]
