"""The leases that a worker holds: waiting for the engine, in the engine, or generated and not yet signed.

The worker's cycles share them: while the engine generates, the next lease is claimed and earlier work is submitted.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from covey.protocol.api.worker import TaskOrder
from covey.protocol.ids import Hash, LeaseId, Step
from worker.generation import Draft

KEPT_GONE = 256
"""Number of released leases that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that waits for the engine or is in it. Times are on `LeaseQueue.clock`."""

    order: TaskOrder
    since: float
    """Time when the lease was first collected."""
    begun: float = 0.0
    """Time when the engine started on the lease."""
    deaths: int = 0
    """Number of times the engine died over the lease."""
    is_forgotten: bool = False
    """Whether the lease expired or was returned while the engine still works on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTask:
    """The drafts that the engine generated for a task."""

    order: TaskOrder
    drafts: tuple[Draft, ...]
    since: float = 0.0
    """Time when the lease was first collected, as in `HeldLease`."""


def _get_policy(order: TaskOrder) -> tuple[Step, Hash]:
    """Return what identifies an order's policy. The version alone does not: a reorganisation may replace a policy."""
    return order.policy_version, order.manifest_hash


@dataclass(kw_only=True)
class LeaseQueue:
    """The leases of a worker. Each moves from `claimed` to `working` to `generated`.

    It leaves when its submission is signed and stored.
    """

    together: int
    """Maximum number of tasks that are generated at once."""
    ahead: int
    """Number of further leases that are claimed while the engine is busy."""
    lease_seconds: float
    clock: Callable[[], float] = time.monotonic
    """Monotonic clock in seconds, which adjustments of the system time do not move."""
    claimed: list[HeldLease] = field(default_factory=list)
    """Leases that wait for the engine, oldest first."""
    working: list[HeldLease] = field(default_factory=list)
    """Leases in the engine, all of the same policy."""
    generated: list[GeneratedTask] = field(default_factory=list)
    generation_seconds: float | None = None
    """Seconds that the last task took in the engine. None before the first."""
    gone: deque[LeaseId] = field(default_factory=lambda: deque(maxlen=KEPT_GONE))
    """Leases that were released last. A claim names them, because the coordinator would otherwise assign them again."""

    @property
    def orders(self) -> list[TaskOrder]:
        """Orders of all leases that are held and have no signed submission yet."""
        orders = [held.order for held in (*self.claimed, *self.working) if not held.is_forgotten]
        return orders + [task.order for task in self.generated]

    @property
    def ids(self) -> list[LeaseId]:
        """Ids of all leases that are held and have no signed submission yet."""
        return [order.lease for order in self.orders]

    def has_room(self, unsent: int) -> bool:
        """Return whether to claim one more lease while `unsent` submissions are on the disk.

        No lease is claimed ahead if it might expire while it waits for others, nor before the first task shows how long
        one takes. None is claimed while more submissions are unsent than the engine generates at once.
        """
        last = self.lease_seconds if self.generation_seconds is None else self.generation_seconds
        longest = max([last, *(self.clock() - held.begun for held in self.working)])
        is_quick = 3 * longest < self.lease_seconds
        most = self.together + (self.ahead if is_quick else 0)
        return len(self.claimed) + len(self.working) < most and len(self.generated) + unsent <= self.together

    def hold(self, order: TaskOrder, *, seconds: float) -> None:
        """Add a collected lease that lasts for `seconds`: less than `lease_seconds` if it is collected again after a
        crash."""
        spent = self.lease_seconds - min(seconds, self.lease_seconds)
        self.claimed.append(HeldLease(order=order, since=self.clock() - spent))

    def drop_overdue(self) -> list[TaskOrder]:
        """Release the expired leases and return them. Leases expire while an engine or the chain does not answer."""
        oldest = self.clock() - self.lease_seconds
        overdue = [
            held.order for held in (*self.claimed, *self.working) if held.since < oldest and not held.is_forgotten
        ]
        overdue += [task.order for task in self.generated if task.since < oldest]
        self.release(overdue)
        return overdue

    def take(self) -> TaskOrder | None:
        """Move the oldest waiting lease to the engine and return its order.

        Returns None if no lease waits, or if the oldest requires another policy than the leases in the engine.
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
        """Return the lease of an order that is in the engine."""
        return next(held for held in self.working if held.order.lease == order.lease)

    def requeue(self, order: TaskOrder, *, deaths: int) -> None:
        """Put a lease back at the head of the queue after a transient failure of the engine."""
        held = self.abandon(order)
        if not held.is_forgotten:
            self.claimed.insert(0, replace(held, deaths=deaths))

    def finish(self, order: TaskOrder, drafts: Sequence[Draft]) -> None:
        """Record that the engine has finished a task. Drafts of a lease that was forgotten meanwhile are dropped."""
        held = self.abandon(order)
        self.generation_seconds = self.clock() - held.begun
        if not held.is_forgotten:
            self.generated.append(GeneratedTask(order=order, drafts=tuple(drafts), since=held.since))

    def abandon(self, order: TaskOrder) -> HeldLease:
        """Remove a lease from those in the engine and return it."""
        held = self.get_working(order)
        self.working.remove(held)
        return held

    def release(self, orders: Sequence[TaskOrder]) -> None:
        """Stop holding these leases. The engine may still be working on them."""
        gone = {order.lease for order in orders}
        self.gone.extend(gone)
        self.claimed = [held for held in self.claimed if held.order.lease not in gone]
        self.working = [
            replace(held, is_forgotten=held.is_forgotten or held.order.lease in gone) for held in self.working
        ]
        self.generated = [task for task in self.generated if task.order.lease not in gone]
