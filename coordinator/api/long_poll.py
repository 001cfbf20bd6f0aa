"""Long polls: a request that waits until there is an answer, looking at the rows only when something was committed."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from coordinator.context import Context
from covey.protocol.ids import Address

LOOK_SECONDS = 1.0
"""A waiting request looks at least this often although nothing was committed: some answers depend on the time."""
Answer = TypeVar("Answer")


class LongPolls:
    """The newest long poll of each validator in this process.  Opening another one ends it."""

    def __init__(self) -> None:
        self._newest: dict[Address, object] = {}

    def open(self, validator: Address) -> tuple[Address, object]:
        """Begin a poll; whatever `validator` had open before ends."""
        token = object()
        self._newest[validator] = token
        return validator, token

    def is_open(self, poll: tuple[Address, object]) -> bool:
        validator, token = poll
        return self._newest.get(validator) is token


async def wait_for(
    ctx: Context, seconds: float, look: Callable[[], Answer | None], *, is_open: Callable[[], bool] = lambda: True
) -> Answer | None:
    """Call `look` again and again for at most `seconds`, while `is_open`; None when there was no answer or the process
    is to end.

    Between two looks something has been committed, or LOOK_SECONDS have passed.
    """
    loop = asyncio.get_running_loop()
    deadline, look_at, seen = loop.time() + seconds, 0.0, None
    while True:
        if not is_open():
            return None
        is_last = loop.time() >= deadline or ctx.stop.is_set()
        newest = ctx.database.changes.read()  # before the look: what is committed meanwhile is looked at next time
        if is_last or newest is None or newest != seen or loop.time() >= look_at:
            seen, look_at = newest, loop.time() + LOOK_SECONDS
            answer = await run_in_threadpool(look)
            if answer is not None or is_last:
                return answer
        await asyncio.sleep(ctx.config.poll_seconds)
