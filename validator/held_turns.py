"""The turns that a validator has taken but not committed to yet. Turns of a few rows do not wait for whole replays.

Turns of drawn rows that need the same policy are judged together, because one pass over many rows costs less than many
passes over few.
"""

import asyncio
import time
from collections.abc import Callable

from covey.protocol.api.validator import JudgeOrder

MOST_WHOLE = 2
"""Number of whole replays after which no turn is added. They are judged one by one, so each waits for those before."""
SHARE = 0.5
"""Share of the time to the first deadline that turns which are judged together are expected to take."""
AT_FIRST = 2
"""Number of turns that are held in any case. More are held once it is known that they can be judged in time."""


class HeldTurns:
    """A queue of turns. Polling adds them and judging removes them, in the same event loop."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._orders: dict[int, JudgeOrder] = {}
        self._deadlines: dict[int, float] = {}
        self._waiting: set[int] = set()
        self._is_waiting = asyncio.Event()
        self._turn_seconds: float | None = None
        """Seconds that a turn of drawn rows took when such turns were judged last. None before."""
        self._allowed = 0.0
        """Maximum of the seconds that turns left for their judgement."""
        self.has_room = asyncio.Event()
        """Set while another turn can be added."""
        self.has_room.set()

    @property
    def held(self) -> tuple[int, ...]:
        """Judgement numbers of the held turns.

        The coordinator offers all other open turns again, because they may be lost.
        """
        return tuple(self._orders)

    @property
    def free(self) -> int:
        """Number of turns that can still be added and judged in time. 0 while MOST_WHOLE whole replays are held."""
        if sum(order.full for order in self._orders.values()) >= MOST_WHOLE:
            return 0
        most = AT_FIRST
        if self._turn_seconds is not None:
            most = max(AT_FIRST, int(SHARE * self._allowed / self._turn_seconds))
        return max(0, min(most, self._most) - len(self._orders))

    def add(self, order: JudgeOrder) -> None:
        """Add a turn. A turn that is already held is not added again."""
        if order.judgement not in self._orders:
            self._orders[order.judgement] = order
            self._deadlines[order.judgement] = self._clock() + order.seconds_left
            self._allowed = max(self._allowed, order.seconds_left)
            self.wait_again(order)
        if not self.free:
            self.has_room.clear()

    def wait_again(self, order: JudgeOrder) -> None:
        """Put a held turn back among those that wait to be judged."""
        self._waiting.add(order.judgement)
        self._is_waiting.set()

    async def take_next(self, most: int) -> list[JudgeOrder]:
        """Wait for turns that are not judged yet. Return the one that is due first, and up to `most` that suit it.

        Whole replays come last, and each of them alone. Turns are judged together if policy and execution contract are
        the same, and if the turns judged last were fast enough for all to end well before the first one is due.
        """
        await self._is_waiting.wait()
        waiting = sorted((self._orders[each] for each in self._waiting), key=self._rank)
        first = waiting[0]
        if first.full or self._turn_seconds is None:
            most = 1
        else:
            most = min(most, int(SHARE * self.get_seconds_left(first) / self._turn_seconds))
        taken = [order for order in waiting if _get_kind(order) == _get_kind(first)][: max(1, most)]
        self._waiting.difference_update(order.judgement for order in taken)
        if not self._waiting:
            self._is_waiting.clear()
        return taken

    def _rank(self, order: JudgeOrder) -> tuple[bool, float, int]:
        return order.full, self._deadlines[order.judgement], order.judgement

    def note_seconds(self, seconds: float, turns: int) -> None:
        """Note how long a number of turns of drawn rows took together."""
        self._turn_seconds = max(seconds / turns, 1e-9)  # a clock may be too coarse to see them

    def get_seconds_left(self, order: JudgeOrder) -> float:
        """Return the seconds until it is too late for a commitment to count. Not positive if it is."""
        return self._deadlines[order.judgement] - self._clock()

    def close(self, order: JudgeOrder) -> None:
        """Release a turn after a commitment or a failure. The coordinator offers it again if it is still open."""
        self._orders.pop(order.judgement, None)
        self._deadlines.pop(order.judgement, None)
        if self.free:
            self.has_room.set()


def _get_kind(order: JudgeOrder) -> tuple[object, ...]:
    """Return what turns must share to be judged together."""
    return order.full, order.receipt.policy_version, order.record_hash, order.contract
