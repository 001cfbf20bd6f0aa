"""The turns that a validator has taken but not committed to yet. Turns of a few rows do not wait for whole replays."""

import asyncio
import time
from collections.abc import Callable

from covey.protocol.api.validator import JudgeOrder


class HeldTurns:
    """A queue of turns. Polling adds them and judging removes them, in the same event loop."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._orders: dict[int, JudgeOrder] = {}
        self._deadlines: dict[int, float] = {}
        self._waiting: asyncio.PriorityQueue[tuple[bool, int]] = asyncio.PriorityQueue()
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
        """Number of turns that can still be added."""
        return max(0, self._most - len(self._orders))

    def add(self, order: JudgeOrder) -> None:
        """Add a turn. A turn that is already held is not added again."""
        if order.judgement not in self._orders:
            self._orders[order.judgement] = order
            self._deadlines[order.judgement] = self._clock() + order.seconds_left
            self._waiting.put_nowait((order.full, order.judgement))
        if not self.free:
            self.has_room.clear()

    async def get_next(self) -> JudgeOrder:
        """Wait for a turn that is not judged yet, and return the oldest. Whole replays come last."""
        _, judgement = await self._waiting.get()
        return self._orders[judgement]

    def is_late(self, order: JudgeOrder) -> bool:
        """Return whether it is too late for a commitment to count."""
        return self._clock() >= self._deadlines[order.judgement]

    def close(self, order: JudgeOrder) -> None:
        """Release a turn after a commitment or a failure. The coordinator offers it again if it is still open."""
        self._orders.pop(order.judgement, None)
        self._deadlines.pop(order.judgement, None)
        self.has_room.set()
