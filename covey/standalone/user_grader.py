"""Grades with a Python function of the user in the main thread, the only one in which signals work.

Libraries such as math-verify end long computations with SIGALRM, which other threads cannot set. Each call has a
deadline, after which an exception is raised inside the function.
"""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

from covey.environments.base import Grade, Grader, Reply
from covey.errors import OperatorError

Post = Callable[[Callable[[], None]], object]
"""Function that makes the main thread call a function soon."""
_SIGNAL = signal.SIGVTALRM
"""Signal that interrupts the main thread at a deadline. SIGALRM belongs to the user's function."""
_LOOK_SECONDS = 0.2


class UserGrader:
    """Grader that calls another one in the main thread, a reply at a time. Other threads call and close it.

    Example: `UserGrader(grade, loop.call_soon_threadsafe, seconds=60)`.
    """

    def __init__(self, grade: Grader, post: Post, *, seconds: float) -> None:
        """`seconds` is the maximum time of one call."""
        self._grade, self._post, self._seconds = grade, post, seconds
        self._waiting: set[_Call] = set()
        self._is_closed = False

    def __call__(self, replies: Sequence[Reply]) -> list[Grade]:
        """Return the grades. Errors of the function are raised as they are.

        Raises OperatorError("slow_reward") if a call takes too long, and CancelledError after `close`.
        """
        return [self._ask(reply) for reply in replies]

    def close(self) -> None:
        """Cancel the calls that have not begun, and all later ones, because the main thread will not make them."""
        self._is_closed = True
        for call in tuple(self._waiting):
            call.cancel()

    def _ask(self, reply: Reply) -> Grade:
        call = _Call(self._grade, reply, self._post, self._seconds)
        self._waiting.add(call)
        try:
            if self._is_closed:  # looked up only now, so that `close` cancels every call that does not see it
                raise CancelledError
            self._post(call.make)
            return call.wait()
        finally:
            self._waiting.discard(call)


class _DeadlineError(BaseException):
    """Raised inside the function. Handlers of Exception in it do not catch this."""


class _Call:
    """One call. The main thread makes it, and another one waits for it."""

    def __init__(self, grade: Grader, reply: Reply, post: Post, seconds: float) -> None:
        self._future: Future[Grade] = Future()
        self._grade, self._reply, self._post, self._seconds = grade, reply, post, seconds
        self._begun: float | None = None
        self._is_running = False

    def make(self) -> None:
        """Call the function and keep its result or its error, unless the call was canceled.

        Ctrl-C raises KeyboardInterrupt here, as it does outside the function, and the call is posted again.
        """
        if self._future.cancelled():
            return
        before = signal.signal(_SIGNAL, self._interrupt)
        try:
            with self:
                self._future.set_result(self._grade([self._reply])[0])
        except KeyboardInterrupt:
            self._post(self.make)
            raise
        finally:
            signal.signal(_SIGNAL, before or signal.SIG_DFL)

    def cancel(self) -> None:
        """Cancel the call unless the function is running."""
        if not self._is_running:
            self._future.cancel()

    def wait(self) -> Grade:
        """Return the result, and interrupt the main thread after the deadline until the function has ended."""
        while True:
            try:
                return self._future.result(timeout=_LOOK_SECONDS)
            except TimeoutError:
                if self._future.done():
                    return self._future.result()  # it ended just now, or the function itself has raised this
            if self._is_running and self._begun is not None and time.monotonic() - self._begun > self._seconds:
                signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_running:
            raise _DeadlineError

    def __enter__(self) -> Self:
        self._begun, self._is_running = time.monotonic(), True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._is_running = False
        if isinstance(error, _DeadlineError):
            prompt = str(self._reply.verification.get("prompt", ""))
            error = OperatorError(
                "slow_reward",
                f"the reward function took more than {self._seconds:g} s for the completion {self._reply.text[:200]!r} "
                f"of the row with the prompt {prompt[:200]!r}",
                fix="Make the function end sooner, or raise data.reward_seconds",
            )
        if isinstance(error, KeyboardInterrupt):
            return False
        if error is not None:
            with suppress(InvalidStateError):  # the call was canceled just before it began
                self._future.set_exception(error)
        return True
