"""The leases that a worker holds: those that wait for the engine, those in it, and what it generated.

The worker's cycles share them: while the engine generates, the next lease is claimed and earlier work submitted.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from covey.protocol.api.worker import TaskOrder
from covey.protocol.ids import Hash, LeaseId, Step
from worker.generation import Draft

KEPT_GONE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that waits for the engine or is in it.  Times are those of `LeaseQueue.clock`."""

    order: TaskOrder
    since: float
    """When it was collected first."""
    begun: float = 0.0
    """When the engine took it."""
    deaths: int = 0
    """How often the engine died over it."""
    is_forgotten: bool = False
    """Whether it expired or was returned while the engine is not done with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTask:
    """What the engine made of a task."""

    order: TaskOrder
    drafts: tuple[Draft, ...]
    since: float = 0.0
    """When its lease was collected, as in `HeldLease`."""


def _get_policy(order: TaskOrder) -> tuple[Step, Hash]:
    """After a reorganisation two orders of one version may require different policies."""
    return order.policy_version, order.manifest_hash


@dataclass(kw_only=True)
class LeaseQueue:
    """Leases go from `claimed` to `working` to `generated`, and leave when their submission is signed and stored."""

    together: int
    """Largest number of tasks that are generated at once."""
    ahead: int
    """Further leases that are claimed while the engine is busy."""
    lease_seconds: float
    clock: Callable[[], float] = time.monotonic
    """Clock that nobody sets."""
    claimed: list[HeldLease] = field(default_factory=list)
    """Leases that wait for the engine, oldest first."""
    working: list[HeldLease] = field(default_factory=list)
    """Leases in the engine, all of one policy."""
    generated: list[GeneratedTask] = field(default_factory=list)
    generation_seconds: float | None = None
    """Time that the last task took. None before the first."""
    gone: deque[LeaseId] = field(default_factory=lambda: deque(maxlen=KEPT_GONE))
    """Leases that were released last: a claim names them, or they would come again."""

    @property
    def orders(self) -> list[TaskOrder]:
        """Orders of all leases that are held and not signed for."""
        held = [held.order for held in (*self.claimed, *self.working) if not held.is_forgotten]
        return held + [task.order for task in self.generated]

    @property
    def ids(self) -> list[LeaseId]:
        """Ids of all leases that are held and not signed for."""
        return [order.lease for order in self.orders]

    def has_room(self, unsent: int) -> bool:
        """Whether to ask for one more lease while `unsent` submissions are on the disk.

        None is claimed ahead where a lease might expire while it waits for others, nor before that is known; none at
        all while more is unsent than the engine makes at once.
        """
        last = self.lease_seconds if self.generation_seconds is None else self.generation_seconds
        longest = max([last, *(self.clock() - held.begun for held in self.working)])
        is_quick = 3 * longest < self.lease_seconds
        most = self.together + (self.ahead if is_quick else 0)
        return len(self.claimed) + len(self.working) < most and len(self.generated) + unsent <= self.together

    def hold(self, order: TaskOrder, *, seconds: float) -> None:
        """Add a collected lease that lasts for `seconds`; one that comes again after a crash lasts less than others."""
        spent = self.lease_seconds - min(seconds, self.lease_seconds)
        self.claimed.append(HeldLease(order=order, since=self.clock() - spent))

    def drop_overdue(self) -> list[TaskOrder]:
        """Release the leases that expired, as they do while an engine or the chain does not answer; return them."""
        oldest = self.clock() - self.lease_seconds
        overdue = [
            held.order for held in (*self.claimed, *self.working) if held.since < oldest and not held.is_forgotten
        ]
        overdue += [task.order for task in self.generated if task.since < oldest]
        self.release(overdue)
        return overdue

    def take(self) -> TaskOrder | None:
        """Move the oldest lease to the engine.

        None where no lease waits, or where it requires another policy than what the engine is working on.
        """
        if not self.claimed:
            return None
        held = self.claimed[0]
        if any(_get_policy(other.order) != _get_policy(held.order) for other in self.working):
            return None
        self.claimed.pop(0)
        self.working.append(replace(held, begun=self.clock()))
        return held.order

    def get_working(self, order: TaskOrder) -> HeldLease:
        """The lease of an order that is in the engine."""
        return next(held for held in self.working if held.order.lease == order.lease)

    def requeue(self, order: TaskOrder, *, deaths: int) -> None:
        """Let a lease wait again, before all others: the engine failed for now."""
        held = self.abandon(order)
        if not held.is_forgotten:
            self.claimed.insert(0, replace(held, deaths=deaths))

    def finish(self, order: TaskOrder, drafts: Sequence[Draft]) -> None:
        """Record that the engine is done with a task; what was forgotten meanwhile stays forgotten."""
        held = self.abandon(order)
        self.generation_seconds = self.clock() - held.begun
        if not held.is_forgotten:
            self.generated.append(GeneratedTask(order=order, drafts=tuple(drafts), since=held.since))

    def abandon(self, order: TaskOrder) -> HeldLease:
        """Take a lease out of the engine."""
        held = self.get_working(order)
        self.working.remove(held)
        return held

    def release(self, orders: Sequence[TaskOrder]) -> None:
        """Hold these leases no more; the engine may still work on them."""
        gone = {order.lease for order in orders}
        self.gone.extend(gone)
        self.claimed = [held for held in self.claimed if held.order.lease not in gone]
        self.working = [
            replace(held, is_forgotten=held.is_forgotten or held.order.lease in gone) for held in self.working
        ]
        self.generated = [task for task in self.generated if task.order.lease not in gone]
