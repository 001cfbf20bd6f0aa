"""The only loop: it runs a role's `cycle` until a stop signal, waits when idle, and backs off after failures.

Only this module and the outbox retry after a `TransientError`. A `ProtocolError` skips the work of one cycle. Every
other error ends the process.
"""

import asyncio
import re
import signal
import threading
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
MAX_CODES = 64
"""Maximum number of codes of errors that are counted apart."""
_CODE = re.compile("[a-z][a-z0-9_]{0,40}")


class CycleResult(StrEnum):
    """Outcome of one cycle, which determines how long the loop waits before the next one."""

    DONE = "done"
    """The cycle achieved something. The next one starts at once."""
    IDLE = "idle"
    """There was nothing to do. The loop waits `idle_wait_s`."""
    RETRY = "retry"
    """Something is not available yet. The loop waits with back-off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Waiting times between cycles. Back-off doubles from `first_retry_s` to `max_retry_s`."""

    idle_wait_s: float = 0.05
    """Seconds to wait after a cycle that had nothing to do."""
    first_retry_s: float = 0.1
    """Seconds to wait after the first of consecutive failures."""
    max_retry_s: float = 5.0
    """Maximum time in seconds to wait after a failure."""


@dataclass(slots=True)
class CycleMetrics:
    """Number of cycles of a role by outcome, number of errors by code, and time spent."""

    counts: Counter[str] = field(default_factory=Counter)
    """Number of cycles by outcome."""
    errors: Counter[str] = field(default_factory=Counter)
    """Number of errors by code. Codes come from peers: those beyond MAX_CODES, and odd ones, count as "other"."""
    seconds: float = 0.0
    """Seconds spent in all cycles and in the waits between them."""
    busy_seconds: float = 0.0
    """Seconds spent in cycles that achieved something."""

    def count_error(self, code: str) -> None:
        """Count an error."""
        is_known = code in self.errors or (_CODE.fullmatch(code) and len(self.errors) < MAX_CODES)
        self.errors[code if is_known else "other"] += 1

    @property
    def idle_ratio(self) -> float:
        """Fraction of the time in which nothing was achieved, from 0 to 1. 0 before the first cycle has ended."""
        return 1 - self.busy_seconds / self.seconds if self.seconds else 0.0


async def run_forever(
    cycle: Callable[[Context], Awaitable[CycleResult]],
    ctx: Context,
    *,
    stop: asyncio.Event,
    pace: Pace | None = None,
    metrics: CycleMetrics | None = None,
) -> None:
    """Run `cycle(ctx)` repeatedly until `stop` is set. A cycle that is running then finishes first."""
    pace, metrics, failures, log = pace or Pace(), metrics or CycleMetrics(), 0, get_logger()
    limit_recursion()
    clock = asyncio.get_running_loop().time
    while not stop.is_set():
        begun = clock()
        try:
            outcome = await cycle(ctx)
        except TransientError as error:
            outcome = CycleResult.RETRY
            metrics.count_error(error.code)
            if failures in (0, 3):
                log.warning("transient error, retrying", code=error.code, message=error.message)
        except ProtocolError as error:
            outcome = CycleResult.RETRY
            metrics.count_error(error.code)
            if failures in (0, 3):
                log.warning("request refused, retrying", code=error.code, message=error.message)
        metrics.counts[outcome] += 1
        metrics.busy_seconds += clock() - begun if outcome is CycleResult.DONE else 0.0
        failures = failures + 1 if outcome is CycleResult.RETRY else 0
        await _rest(outcome, failures, pace, stop)
        metrics.seconds += clock() - begun


async def report_forever(role: str, metrics: CycleMetrics, *, stop: asyncio.Event, every: float = 300.0) -> None:
    """Log a role's counts and idle ratio every `every` seconds, and once more at the end."""
    is_over = False
    while not is_over:
        is_over = await wait_or_stop(stop, every)
        errors = {f"error/{code}": count for code, count in metrics.errors.items()}
        idle = {f"{role}/idle_ratio": round(metrics.idle_ratio, 3)}
        get_logger().info("cycle statistics", **idle, **metrics.counts, **errors)


async def _rest(outcome: CycleResult, failures: int, pace: Pace, stop: asyncio.Event) -> None:
    if outcome is CycleResult.DONE:
        await asyncio.sleep(0)
        return
    backoff = min(pace.max_retry_s, pace.first_retry_s * 2 ** min(failures - 1, 16))
    await wait_or_stop(stop, pace.idle_wait_s if outcome is CycleResult.IDLE else backoff)


async def wait_or_stop(stop: asyncio.Event, seconds: float) -> bool:
    """Wait until `stop` is set, for at most `seconds`. Returns whether it was set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def or_stop(stop: asyncio.Event, waiting: Coroutine[object, object, Result]) -> Result | None:
    """Return the result of `waiting`.

    Return None as soon as `stop` is set, so that a long poll does not delay the end.
    """
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

    This allows a process to start before the processes that it depends on.
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
def stop_signals(stop: asyncio.Event, *, on_stop: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Make SIGINT and SIGTERM set `stop` in this context. A second SIGINT ends the process at once.

    `on_stop` is called at the first signal. In a thread other than the main one signals have their usual effect,
    because they cannot be handled there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)

    def end() -> None:
        if not stop.is_set():
            on_stop()
        stop.set()

    def interrupt() -> None:
        end()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGINT, before)
