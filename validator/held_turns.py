"""The turns that a validator has taken but not committed to yet.

Turns are judged in the order of their deadlines. Turns of drawn rows that need the same policy are judged together,
because one pass over many rows costs less than many passes over few.
"""

import asyncio
import time
from collections.abc import Callable

from covey.protocol.api.validator import JudgeOrder
from covey.runtime.log import get_logger

MAX_WHOLE = 2
"""Number of whole replays after which no turn is added. They are judged one by one, so each waits for those before."""
AT_FIRST = 2
"""Number of turns for which there is room before any was judged."""


class HeldTurns:
    """A queue of turns. Polling adds them and judging removes them, in the same event loop.

    There is room for one turn more after each that is closed with half of its time left, up to `most`, and for one
    less after every other one, down to a single turn. So the room at most doubles with a pass, and only if the pass
    took half of the time. The turns of a slow engine wait for other validators, and do not lapse in its queue.
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._room = min(AT_FIRST, most)
        self._orders: dict[int, JudgeOrder] = {}
        self._deadlines: dict[int, float] = {}
        self._waiting: set[int] = set()
        self._is_waiting = asyncio.Event()
        self.has_room = asyncio.Event()
        """Set while another turn can be added."""
        self._note_change()

    @property
    def held(self) -> tuple[int, ...]:
        """Judgement numbers of the held turns.

        The coordinator offers all other open turns again, because they may be lost.
        """
        return tuple(self._orders)

    @property
    def free(self) -> int:
        """Number of turns that can still be added. 0 while MAX_WHOLE whole replays are held."""
        return 0 if self._count_whole() >= MAX_WHOLE else max(0, self._room - len(self._orders))

    @property
    def free_replays(self) -> int:
        """Maximum number of whole replays among the turns that can still be added, at least 1."""
        return max(1, MAX_WHOLE - self._count_whole())

    def add(self, order: JudgeOrder) -> None:
        """Add a turn. A turn that is already held is not added again."""
        if order.judgement not in self._orders:
            self._orders[order.judgement] = order
            self._deadlines[order.judgement] = self._clock() + order.seconds_left
            self.wait_again(order)

    def wait_again(self, order: JudgeOrder) -> None:
        """Put a held turn back among those that wait to be judged."""
        self._waiting.add(order.judgement)
        self._note_change()

    async def take_next(self, most: int) -> list[JudgeOrder]:
        """Wait for turns that are not judged yet. Return the one that is due first, and up to `most` that suit it.

        A whole replay is returned alone. Turns of drawn rows suit each other if pool, policy and execution contract
        are the same. All overdue turns are left to other validators. The list is empty if there are only such turns.
        """
        await self._is_waiting.wait()
        waiting = sorted((self._orders[each] for each in self._waiting), key=self._get_rank)
        for order in waiting:
            if self.get_seconds_left(order) <= 0:
                get_logger().warning(
                    "turn skipped, too late to commit to a verdict", task=order.receipt.task, judgement=order.judgement
                )
                self.close(order)
        due = [order for order in waiting if order.judgement in self._orders]
        suitable = [order for order in due if _get_kind(order) == _get_kind(due[0])]
        taken = suitable[: 1 if due and due[0].full else most]
        self._waiting.difference_update(order.judgement for order in taken)
        self._note_change()
        return taken

    def _count_whole(self) -> int:
        return sum(order.full for order in self._orders.values())

    def _get_rank(self, order: JudgeOrder) -> tuple[float, int]:
        return self._deadlines[order.judgement], order.judgement

    def get_seconds_left(self, order: JudgeOrder) -> float:
        """Return the seconds until it is too late for a commitment to count. Not positive if it is."""
        return self._deadlines[order.judgement] - self._clock()

    def close(self, order: JudgeOrder) -> None:
        """Release a held turn after a commitment or a failure. The coordinator offers it again if it is still open."""
        is_early = self.get_seconds_left(order) >= order.seconds_left / 2 > 0
        self._room = min(self._most, self._room + 1) if is_early else max(1, self._room - 1)
        del self._orders[order.judgement], self._deadlines[order.judgement]
        self._waiting.discard(order.judgement)
        self._note_change()

    def _note_change(self) -> None:
        """Set or clear both events. Every change of the queue or of its room ends here."""
        for event, is_set in ((self.has_room, self.free > 0), (self._is_waiting, bool(self._waiting))):
            if is_set:
                event.set()
            else:
                event.clear()


def _get_kind(order: JudgeOrder) -> tuple[object, ...]:
    """Return what turns must share to be judged together."""
    return order.full, order.receipt.pool, order.receipt.policy_version, order.record_hash, order.contract
