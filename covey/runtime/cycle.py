"""The only loop: runs a role's `cycle` until a stop signal, waits when there is nothing to do, backs off on failure.

Only this module and the outbox retry after a `TransientError`. A `ProtocolError` skips the work of one cycle. Every
other error ends the process.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from covey.errors import ProtocolError, TransientError
from covey.runtime.log import get_logger
from covey.runtime.recursion import limit_recursion

Context = TypeVar("Context")
Result = TypeVar("Result")


class CycleResult(StrEnum):
    """Outcome of one cycle, which decides how long the loop waits before the next one."""

    DONE = "done"
    """The cycle achieved something. The next one starts at once."""
    IDLE = "idle"
    """There was nothing to do. The loop waits `idle_wait_s`."""
    RETRY = "retry"
    """Something is not available yet. The loop waits with back-off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Waiting times between cycles. Back-off doubles from `retry_first_s` to `retry_most_s`."""

    idle_wait_s: float = 0.05
    """Seconds to wait after a cycle that had nothing to do."""
    retry_first_s: float = 0.1
    """Seconds to wait after the first failure in a row."""
    retry_most_s: float = 5.0
    """Longest wait in seconds after a failure."""


@dataclass(slots=True)
class CycleMetrics:
    """Counts of outcomes and error codes of a role's cycles, and the time that they took."""

    counts: Counter[str] = field(default_factory=Counter)
    """Number of cycles by outcome, and of errors by code."""
    seconds: float = 0.0
    """Seconds spent in all cycles and in the waits between them."""
    busy_seconds: float = 0.0
    """Seconds spent in cycles that achieved something."""

    @property
    def idle_ratio(self) -> float:
        """Share of the time in which nothing was achieved, from 0 to 1. It is 0 before the first cycle has ended."""
        return 1 - self.busy_seconds / self.seconds if self.seconds else 0.0


async def run_forever(
    cycle: Callable[[Context], Awaitable[CycleResult]],
    ctx: Context,
    *,
    stop: asyncio.Event,
    pace: Pace | None = None,
    metrics: CycleMetrics | None = None,
) -> None:
    """Run `cycle(ctx)` repeatedly until `stop` is set. A cycle that is running at that moment finishes first."""
    pace, metrics, failures, log = pace or Pace(), metrics or CycleMetrics(), 0, get_logger()
    limit_recursion()
    clock = asyncio.get_running_loop().time
    while not stop.is_set():
        begun = clock()
        try:
            outcome = await cycle(ctx)
        except TransientError as error:
            outcome = CycleResult.RETRY
            metrics.counts[error.code] += 1
            if failures in (0, 3):
                log.warning("transient error, retrying", code=error.code, message=error.message)
        except ProtocolError as error:
            outcome = CycleResult.RETRY
            metrics.counts[error.code] += 1
            if failures in (0, 3):
                log.warning("protocol error, retrying", code=error.code, message=error.message)
        metrics.counts[outcome] += 1
        metrics.busy_seconds += clock() - begun if outcome is CycleResult.DONE else 0.0
        failures = failures + 1 if outcome is CycleResult.RETRY else 0
        await _rest(outcome, failures, pace, stop)
        metrics.seconds += clock() - begun


async def report_forever(role: str, metrics: CycleMetrics, *, stop: asyncio.Event, every: float = 300.0) -> None:
    """Log the counts and the idle ratio of a role every `every` seconds, and once more at the end."""
    is_over = False
    while not is_over:
        is_over = await wait_or_stop(stop, every)
        idle = {f"{role}/idle_ratio": round(metrics.idle_ratio, 3)}
        get_logger().info("cycle statistics", **idle, **metrics.counts)


async def _rest(outcome: CycleResult, failures: int, pace: Pace, stop: asyncio.Event) -> None:
    if outcome is CycleResult.DONE:
        await asyncio.sleep(0)
        return
    backoff = min(pace.retry_most_s, pace.retry_first_s * 2 ** min(failures - 1, 16))
    await wait_or_stop(stop, pace.idle_wait_s if outcome is CycleResult.IDLE else backoff)


async def wait_or_stop(stop: asyncio.Event, seconds: float) -> bool:
    """Wait until `stop` is set, for at most `seconds`. Returns whether it was set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def or_stop(stop: asyncio.Event, waiting: Coroutine[object, object, Result]) -> Result | None:
    """Return the result of `waiting`, or None as soon as `stop` is set, because a long poll must not delay the end."""
    task, stopping = asyncio.ensure_future(waiting), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)


async def keep_trying(
    attempt: Callable[[], Coroutine[object, object, Result]], stop: asyncio.Event, *, pace: Pace | None = None
) -> Result | None:
    """Repeat `attempt` with back-off while it raises TransientError. Returns None if `stop` is set first.

    This lets a process start before the processes that it depends on.
    """
    pace, failures, log = pace or Pace(), 0, get_logger()
    while not stop.is_set():
        try:
            return await attempt()
        except TransientError as error:
            failures += 1
            if failures in (1, 8):
                log.warning("transient error, retrying", code=error.code, message=error.message)
            await _rest(CycleResult.RETRY, failures, pace, stop)
    return None


@contextmanager
def stop_signals(stop: asyncio.Event) -> Iterator[None]:
    """Make SIGINT and SIGTERM set `stop` inside this context. A second SIGINT ends the process at once."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGINT, before)
