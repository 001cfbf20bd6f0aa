"""Which of several pools a worker works for, and when it leaves one for another.

The worker is in one pool at a time, because its engine holds one policy at a time. It leaves a pool that has no work or
no money, and one that it has stayed in long enough while a pool that it prefers may have work again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from covey.errors import OperatorError
from worker.config import WorkerConfig

Preference = Literal["pay", "fair", "first"]


@dataclass(kw_only=True)
class PoolSeat:
    """The worker's place in one pool. Times are in seconds of one monotonic clock."""

    config: WorkerConfig
    price: float
    """Reward for a million tokens, in whole units of the pool's token.

    Pools with different tokens are compared by number.
    """
    worked_seconds: float = 0.0
    """Time that the worker has spent in the pool, without the waits at its end."""
    rests_until: float = -math.inf
    """Time before which the worker does not return, because the pool had no work or no money."""
    refusal: OperatorError | None = None
    """Error for which the worker has given the pool up. None if it has not."""


@dataclass(kw_only=True)
class Rounds:
    """Chooses among the pools of one worker."""

    seats: Sequence[PoolSeat]
    preference: Preference
    stay_seconds: float
    """As the setting with this name, like the next one."""
    idle_seconds: float

    def choose(self, now: float) -> PoolSeat:
        """Return the pool to work for next: the preferred one of those that do not rest, or the one that rests least.

        Raises the error of the last pool if all are given up.
        """
        held = [seat for seat in self.seats if seat.refusal is None]
        if not held:
            refusals = [seat.refusal for seat in self.seats if seat.refusal is not None]
            raise refusals[-1]
        return min(held, key=lambda seat: (max(0.0, seat.rests_until - now), self._rank(seat)))

    def is_over(self, seat: PoolSeat, now: float, *, begun: float, useful_at: float, is_paid: bool = True) -> bool:
        """Return whether to leave a pool: it had no work for too long, or a preferred one may have some again.

        `begun` is the time of the arrival, and `useful_at` the last time at which there was work. `is_paid` is False if
        the pool has no money for another task. The worker then leaves at once, unless all others rest.
        """
        others = [other for other in self.seats if other is not seat and other.refusal is None]
        if not others:
            return False
        if now - useful_at >= self.idle_seconds:
            return True
        if not is_paid and any(other.rests_until <= now for other in others):
            return True
        if now - begun < self.stay_seconds:
            return False
        rank = self._rank(seat, spent=now - begun)
        return any(other.rests_until <= now and self._rank(other) < rank for other in others)

    def leave(self, seat: PoolSeat, now: float, *, begun: float, useful_at: float, is_paid: bool = True) -> None:
        """Record the end of a stay. A pool without work or money rests for `stay_seconds`."""
        seat.worked_seconds += max(0.0, useful_at - begun)
        if now - useful_at >= self.idle_seconds or not is_paid:
            seat.rests_until = now + self.stay_seconds

    def _rank(self, seat: PoolSeat, *, spent: float = 0.0) -> float:
        if self.preference == "pay":
            return -seat.price
        if self.preference == "fair":
            return seat.worked_seconds + spent
        return self.seats.index(seat)
