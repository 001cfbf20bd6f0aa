"""What the worker has in hand: leases that wait for the engine, and what the engine made of others.

Three cycles of `loop` share it: while the engine generates, the next lease is claimed and the last work handed in.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    def leases(self) -> list[LeaseId]:
        """All that are in hand."""
        return [held.order.lease for held in self.claimed] + [made.order.lease for made in self.made]

    def has_room(self, unsent: int) -> bool:
        """Whether to ask for one more lease, with `unsent` parcels on the disk.

        None ahead where a lease might run out while it waits for the batch before it; none at all while more is
        unsent than the engine makes at once.
        """
        ahead = self.ahead if 3 * self.generation_seconds < self.lease_seconds else 0
        return len(self.claimed) < self.together + ahead and len(self.made) + unsent <= self.together

    def hold(self, order: TaskOrder) -> None:
        """A lease was collected."""
        self.claimed.append(Held(order=order, since=self.clock()))

    def drop_overdue(self) -> list[TaskOrder]:
        """Forget the leases that ran out, as they do while an engine does not come up; returns them."""
        oldest = self.clock() - self.lease_seconds
        overdue = [held.order for held in self.claimed if held.since < oldest]
        self.claimed = [held for held in self.claimed if held.since >= oldest]
        return overdue

    def get_batch(self) -> list[TaskOrder]:
        """The tasks to generate now: the oldest, and others of its policy."""
        orders = [held.order for held in self.claimed]
        return [order for order in orders if order.policy_version == orders[0].policy_version][: self.together]

    def finish(self, made: Sequence[Made], seconds: float) -> None:
        """The engine is done with a batch."""
        self.let_go([each.order for each in made])
        self.made += made
        self.generation_seconds = seconds

    def let_go(self, orders: Sequence[TaskOrder]) -> None:
        """These leases wait for the engine no more."""
        gone = {order.lease for order in orders}
        self.claimed = [held for held in self.claimed if held.order.lease not in gone]
