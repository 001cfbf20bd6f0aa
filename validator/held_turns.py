"""The turns that a validator has taken and not yet committed to. Cheap checks do not wait for replays."""

import asyncio
import time
from collections.abc import Callable

from covey.protocol.api.validator import JudgeOrder


class HeldTurns:
    """Held turns in a queue. The poll adds them and judging removes them, in the same event loop."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._orders: dict[int, JudgeOrder] = {}
        self._deadlines: dict[int, float] = {}
        self._waiting: asyncio.PriorityQueue[tuple[bool, int]] = asyncio.PriorityQueue()
        self.has_room = asyncio.Event()
        """Set while one more turn may be taken."""
        self.has_room.set()

    @property
    def held(self) -> tuple[int, ...]:
        """Numbers of the judgements whose turns are held. The coordinator offers any other one again, as lost."""
        return tuple(self._orders)

    @property
    def free(self) -> int:
        """Number of further turns that may be taken."""
        return max(0, self._most - len(self._orders))

    def add(self, order: JudgeOrder) -> None:
        """Take a turn. Nothing changes if it is already held."""
        if order.judgement not in self._orders:
            self._orders[order.judgement] = order
            self._deadlines[order.judgement] = self._clock() + order.seconds_left
            self._waiting.put_nowait((order.full, order.judgement))
        if not self.free:
            self.has_room.clear()

    async def get_next(self) -> JudgeOrder:
        """Return the oldest turn that is not judged yet, cheap checks before replays. Wait until there is one."""
        _, judgement = await self._waiting.get()
        return self._orders[judgement]

    def is_late(self, order: JudgeOrder) -> bool:
        """Return whether a commitment would be too late to count."""
        return self._clock() >= self._deadlines[order.judgement]

    def close(self, order: JudgeOrder) -> None:
        """Release a turn after a commitment or a failure. If it is still open, the coordinator offers it again."""
        self._orders.pop(order.judgement, None)
        self._deadlines.pop(order.judgement, None)
        self.has_room.set()
