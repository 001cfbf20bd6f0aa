"""The turns that a validator has taken and not committed to.  Cheap checks do not wait for replays."""

import asyncio
import time
from collections.abc import Callable

from covey.protocol.api.validator import JudgeOrder


class HeldTurns:
    """Filled by the poll, emptied by judging; both in one event loop."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._orders: dict[int, JudgeOrder] = {}
        self._deadlines: dict[int, float] = {}
        self._waiting: asyncio.PriorityQueue[tuple[bool, int]] = asyncio.PriorityQueue()
        self.has_room = asyncio.Event()
        """Set while one more may be taken."""
        self.has_room.set()

    @property
    def held(self) -> tuple[int, ...]:
        """Numbers of the judgements, for the coordinator: any other one was lost and is offered again."""
        return tuple(self._orders)

    @property
    def free(self) -> int:
        """How many more may be taken."""
        return max(0, self._most - len(self._orders))

    def add(self, order: JudgeOrder) -> None:
        """Take a turn; one that is held already is not taken twice."""
        if order.judgement not in self._orders:
            self._orders[order.judgement] = order
            self._deadlines[order.judgement] = self._clock() + order.seconds_left
            self._waiting.put_nowait((order.full, order.judgement))
        if not self.free:
            self.has_room.clear()

    async def get_next(self) -> JudgeOrder:
        """The oldest turn that is not judged yet, cheap checks before replays; waits for one."""
        _, judgement = await self._waiting.get()
        return self._orders[judgement]

    def is_late(self, order: JudgeOrder) -> bool:
        """Whether a commitment would not count any more."""
        return self._clock() >= self._deadlines[order.judgement]

    def close(self, order: JudgeOrder) -> None:
        """Done with a turn, by a commitment or a failure: if it is open still, the coordinator offers it again."""
        self._orders.pop(order.judgement, None)
        self._deadlines.pop(order.judgement, None)
        self.has_room.set()
