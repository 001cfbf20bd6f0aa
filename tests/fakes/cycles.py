"""Helpers for tests of the worker's cycles: an engine that records its batches, a wait for a condition, a failure."""

import asyncio
import time
from collections.abc import Callable, Sequence

from covey.demo.cheats import Wrapped
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.toploc.topk import Capture

HANG_S = 60.0
"""Deadline against hanging, in seconds."""


class Counting(Wrapped):
    """Records the size of each batch. `on_batch` is called in the middle, then the next of `fails` is raised."""

    def __init__(self, engine: Engine, *, fails: Sequence[Exception] = ()) -> None:
        super().__init__(engine)
        self.batches: list[int] = []
        self.fails = list(fails)
        self.on_batch: Callable[[], object] = lambda: None

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Completion]:
        self.batches.append(len(requests))
        self.on_batch()
        if self.fails:
            raise self.fails.pop(0)
        return super().generate(requests, temperature=temperature, capture=capture)


async def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_done():
        assert time.monotonic() < deadline, "the condition was not met in time"
        await asyncio.sleep(0.01)


def fail_at(moment: str, error: Exception, *, times: int = 1) -> Callable[[str], None]:
    left = [times]

    def fail(when: str) -> None:
        if when == moment and left[0]:
            left[0] -= 1
            raise error

    return fail
