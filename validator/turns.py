"""The turns that a validator has taken and not committed to, in the order in which they are judged."""

import asyncio

from covey.protocol.wire import JudgeOrder


class Turns:
    """Filled by the poll, emptied by judging; both in one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._orders: dict[int, JudgeOrder] = {}
        self._waiting: asyncio.Queue[int] = asyncio.Queue()
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
            self._waiting.put_nowait(order.judgement)
        if not self.free:
            self.has_room.clear()

    async def get_next(self) -> JudgeOrder:
        """The oldest turn that nobody judges yet; waits for one."""
        return self._orders[await self._waiting.get()]

    def close(self, order: JudgeOrder) -> None:
        """Done with a turn, by a commitment or a failure: if it is open still, the coordinator offers it again."""
        self._orders.pop(order.judgement, None)
        self.has_room.set()
