"""What the worker has in hand: leases that wait for the engine, those in it, and what it made of others.

The cycles of `loop` share it: while the engine generates, the next lease is claimed and the last work handed in.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from covey.protocol.api.worker import TaskOrder
from covey.protocol.ids import Hash, LeaseId, Step
from worker.generation import Draft

KEPT_GONE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease and when it was collected first, by a clock that nobody sets."""

    order: TaskOrder
    since: float
    begun: float = 0.0
    """When the engine took it."""
    deaths: int = 0
    """How often the engine died with it."""
    is_forgotten: bool = False
    """It ran out or was given back, and the engine is not done with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTask:
    """What the engine made of a task."""

    order: TaskOrder
    drafts: tuple[Draft, ...]
    since: float = 0.0
    """When its lease was collected, as in `Held`."""


def _get_policy(order: TaskOrder) -> tuple[Step, Hash]:
    """After a reorganisation two orders of one version may want different policies."""
    return order.policy_version, order.manifest_hash


@dataclass(kw_only=True)
class Pipeline:
    """Leases go from `claimed` to `working` to `made`, and leave when their parcel is on the disk."""

    together: int
    """Tasks that are generated beside each other at most."""
    ahead: int
    """Further leases that are claimed while the engine is busy."""
    lease_seconds: float
    clock: Callable[[], float] = time.monotonic
    claimed: list[HeldLease] = field(default_factory=list)
    """In order."""
    working: list[HeldLease] = field(default_factory=list)
    """In the engine, all of one policy."""
    made: list[GeneratedTask] = field(default_factory=list)
    generation_seconds: float | None = None
    """That the last task took; None before the first."""
    hangs: int = 0
    """How often in a row the engine hung."""
    hung_at: float = -math.inf
    """When it did last."""
    fetched: set[Step] = field(default_factory=set)
    """Policies that are or were on the disk."""
    loaded: Path | None = None
    """What the engine was given last: a reorganisation may give a version another policy."""
    refused: set[Step] = field(default_factory=set)
    """Policies that no engine takes."""
    gone: deque[LeaseId] = field(default_factory=lambda: deque(maxlen=KEPT_GONE))
    """Leases that were let go last: whoever asks for one names them, or they would come again."""
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    work_over: asyncio.Event = field(default_factory=asyncio.Event)
    sealing_over: asyncio.Event = field(default_factory=asyncio.Event)
    all_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def orders(self) -> list[TaskOrder]:
        """All that are in hand and not signed for."""
        held = [held.order for held in (*self.claimed, *self.working) if not held.is_forgotten]
        return held + [made.order for made in self.made]

    @property
    def cached_version(self) -> Step | None:
        """The newest policy to work with."""
        return max(self.fetched - self.refused, default=None)

    @property
    def leases(self) -> list[LeaseId]:
        """Of `orders`."""
        return [order.lease for order in self.orders]

    def has_room(self, unsent: int) -> bool:
        """Whether to ask for one more lease, with `unsent` parcels on the disk.

        None ahead where a lease might run out while it waits for others, nor before that is known; none at all while
        more is unsent than the engine makes at once.
        """
        last = self.lease_seconds if self.generation_seconds is None else self.generation_seconds
        longest = max([last, *(self.clock() - held.begun for held in self.working)])
        is_quick = 3 * longest < self.lease_seconds
        most = self.together + (self.ahead if is_quick else 0)
        return len(self.claimed) + len(self.working) < most and len(self.made) + unsent <= self.together

    def hold(self, order: TaskOrder, *, seconds: float) -> None:
        """A lease was collected that lasts for so long; one that comes again after a crash lasts less than others."""
        spent = self.lease_seconds - min(seconds, self.lease_seconds)
        self.claimed.append(HeldLease(order=order, since=self.clock() - spent))

    def drop_overdue(self) -> list[TaskOrder]:
        """Forget the leases that ran out, as they do while an engine or the chain does not answer; returns them."""
        oldest = self.clock() - self.lease_seconds
        overdue = [
            held.order for held in (*self.claimed, *self.working) if held.since < oldest and not held.is_forgotten
        ]
        overdue += [made.order for made in self.made if made.since < oldest]
        self.let_go(overdue)
        return overdue

    def take(self) -> TaskOrder | None:
        """The oldest lease, now in the engine; None where there is none, or one that wants another policy than what the
        engine is working on."""
        if not self.claimed:
            return None
        held = self.claimed[0]
        if any(_get_policy(each.order) != _get_policy(held.order) for each in self.working):
            return None
        self.claimed.pop(0)
        self.working.append(replace(held, begun=self.clock()))
        return held.order

    def put_back(self, order: TaskOrder, *, code: str) -> int:
        """The engine failed for now: the lease waits again, before all others.

        Returns how often it died with this one, or hung in a row if that is what it did; 0 for other codes.
        """
        held = self._leave(order)
        is_new = held.begun >= self.hung_at  # what ran beside a call that hung ended with it
        deaths = held.deaths + (is_new and code == "engine_died")
        if is_new and code == "engine_timeout":
            self.hangs, self.hung_at = self.hangs + 1, self.clock()
        if not held.is_forgotten:
            self.claimed.insert(0, replace(held, deaths=deaths))
        return {"engine_died": deaths, "engine_timeout": self.hangs}.get(code, 0)

    def finish(self, order: TaskOrder, drafts: Sequence[Draft]) -> None:
        """The engine is done with a task; what was forgotten meanwhile stays so."""
        held = self._leave(order)
        self.hangs = 0
        self.generation_seconds = self.clock() - held.begun
        if not held.is_forgotten:
            self.made.append(GeneratedTask(order=order, drafts=tuple(drafts), since=held.since))

    def abandon(self, order: TaskOrder) -> None:
        """The engine will never be done with a task."""
        self._leave(order)

    def _leave(self, order: TaskOrder) -> HeldLease:
        place = next(i for i, held in enumerate(self.working) if held.order.lease == order.lease)
        return self.working.pop(place)

    def let_go(self, orders: Sequence[TaskOrder]) -> None:
        """These leases are not in hand any more; the engine may still work on them."""
        gone = {order.lease for order in orders}
        self.gone.extend(gone)
        self.claimed = [held for held in self.claimed if held.order.lease not in gone]
        self.working = [
            replace(held, is_forgotten=held.is_forgotten or held.order.lease in gone) for held in self.working
        ]
        self.made = [made for made in self.made if made.order.lease not in gone]
