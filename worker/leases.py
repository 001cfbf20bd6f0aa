"""The leases of a worker: waiting for the engine, in the engine, or generated but not signed yet.

The worker's cycles share them: while the engine generates, the next lease is claimed and earlier work is submitted.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from covey.protocol.api.worker import TaskOrder
from covey.protocol.ids import Hash, LeaseId, Step
from covey.rollouts import Draft

KEPT_GONE = 256
"""Number of recently released leases to remember."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that waits for the engine or is in it. Its times are on `LeaseQueue.clock`."""

    order: TaskOrder
    since: float
    """Time when the lease was first received."""
    begun: float = 0.0
    """Time when the engine started on the lease."""
    deaths: int = 0
    """Number of times that the engine died during the lease."""
    is_forgotten: bool = False
    """Whether the lease expired or was returned while the engine was still working on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTask:
    """The drafts that the engine generated for a task."""

    order: TaskOrder
    drafts: tuple[Draft, ...]
    since: float = 0.0
    """Time when the lease was first received, as in `HeldLease`."""


def _get_policy(order: TaskOrder) -> tuple[Step, Hash]:
    """Return what identifies an order's policy.

    The version is not enough, because a reorganisation can replace a policy.
    """
    return order.policy_version, order.record_hash


@dataclass(kw_only=True)
class LeaseQueue:
    """The leases of a worker. Each moves from `claimed` to `working` to `generated`.

    It leaves the queue once its submission is signed and stored.
    """

    together: int
    """Maximum number of tasks in the engine at the same time."""
    ahead: int
    """Maximum number of leases to claim in advance while the engine is busy."""
    lease_seconds: float
    clock: Callable[[], float] = time.monotonic
    """Monotonic clock in seconds. Changes of the system time do not affect it."""
    claimed: list[HeldLease] = field(default_factory=list)
    """Leases that wait for the engine, oldest first."""
    working: list[HeldLease] = field(default_factory=list)
    """Leases in the engine, all of the same policy."""
    generated: list[GeneratedTask] = field(default_factory=list)
    generation_seconds: float | None = None
    """Seconds that the engine took for the last task. None before the first task."""
    gone: deque[LeaseId] = field(default_factory=lambda: deque(maxlen=KEPT_GONE))
    """The most recently released leases.

    A claim lists them, because the coordinator would otherwise assign them again.
    """

    @property
    def orders(self) -> list[TaskOrder]:
        """Orders of all held leases that have no signed submission yet."""
        orders = [held.order for held in (*self.claimed, *self.working) if not held.is_forgotten]
        return orders + [task.order for task in self.generated]

    @property
    def ids(self) -> list[LeaseId]:
        """Ids of all held leases that have no signed submission yet."""
        return [order.lease for order in self.orders]

    def has_room(self, unsent: int) -> bool:
        """Return whether to claim a further lease. `unsent` is the number of submissions that have not been sent yet.

        No lease is claimed ahead if it might expire while it waits, or before the first task shows how long a task
        takes. None is claimed while more submissions are unsent than the engine generates at once.
        """
        last = self.lease_seconds if self.generation_seconds is None else self.generation_seconds
        longest = max([last, *(self.clock() - held.begun for held in self.working)])
        is_quick = 3 * longest < self.lease_seconds
        most = self.together + (self.ahead if is_quick else 0)
        return len(self.claimed) + len(self.working) < most and len(self.generated) + unsent <= self.together

    def hold(self, order: TaskOrder, *, seconds: float) -> None:
        """Add a received lease that expires after `seconds`. This is less than `lease_seconds` after a restart."""
        spent = self.lease_seconds - min(seconds, self.lease_seconds)
        self.claimed.append(HeldLease(order=order, since=self.clock() - spent))

    def drop_overdue(self) -> list[TaskOrder]:
        """Release the expired leases and return them. Leases expire while an engine or the chain does not respond."""
        oldest = self.clock() - self.lease_seconds
        overdue = [
            held.order for held in (*self.claimed, *self.working) if held.since < oldest and not held.is_forgotten
        ]
        overdue += [task.order for task in self.generated if task.since < oldest]
        self.release(overdue)
        return overdue

    def take(self) -> TaskOrder | None:
        """Move the oldest waiting lease to the engine and return its order.

        Returns None if no lease waits, or if the oldest needs a different policy than the leases in the engine.
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
        """Return the lease of an order in the engine."""
        return next(held for held in self.working if held.order.lease == order.lease)

    def requeue(self, order: TaskOrder, *, deaths: int) -> None:
        """Put a lease back at the head of the queue after a transient failure of the engine."""
        held = self.abandon(order)
        if not held.is_forgotten:
            self.claimed.insert(0, replace(held, deaths=deaths))

    def finish(self, order: TaskOrder, drafts: Sequence[Draft]) -> None:
        """Record that the engine has finished a task. If the lease was forgotten meanwhile, its drafts are dropped."""
        held = self.abandon(order)
        self.generation_seconds = self.clock() - held.begun
        if not held.is_forgotten:
            self.generated.append(GeneratedTask(order=order, drafts=tuple(drafts), since=held.since))

    def abandon(self, order: TaskOrder) -> HeldLease:
        """Remove a lease from the engine's leases and return it."""
        held = self.get_working(order)
        self.working.remove(held)
        return held

    def release(self, orders: Sequence[TaskOrder]) -> None:
        """Stop holding these leases. The engine may still work on them."""
        gone = {order.lease for order in orders}
        self.gone.extend(gone)
        self.claimed = [held for held in self.claimed if held.order.lease not in gone]
        self.working = [
            replace(held, is_forgotten=held.is_forgotten or held.order.lease in gone) for held in self.working
        ]
        self.generated = [task for task in self.generated if task.order.lease not in gone]
