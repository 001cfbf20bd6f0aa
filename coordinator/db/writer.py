"""Group commit: one thread applies commands in the order of their arrival, many of them in one transaction.

A command is a function of a `Repository`, which changes rows. If it raises, only its own changes are rolled back. A
caller gets the result after the commit, so every result that a caller has seen is on disk.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, Self, TypeVar

from prometheus_client import Histogram
from prometheus_client.registry import Collector
from sqlalchemy import Connection
from sqlalchemy.exc import InterfaceError, OperationalError, PendingRollbackError
from sqlalchemy.orm import Session

from coordinator.db.repository import Repository
from covey.errors import TransientError
from covey.runtime.prometheus import LATENCY_SECONDS

MAX_COMMANDS = 256
"""Maximum number of commands in one transaction."""
SLICE_SECONDS = 0.05
"""Time in seconds after which a transaction takes no further commands, so that other processes get their turn."""
Result = TypeVar("Result")


class _Command(NamedTuple):
    work: Callable[[Repository], Any]
    name: str
    future: "Future[Any]"
    expires_at: float
    """Time of the monotonic clock after which the caller no longer waits for the result."""


class _Outcome:
    """Context manager that keeps the error of its block for a waiting caller, instead of propagating it."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self.error = error
        return True


class WriterMeter:
    """Durations of a writer's commits and commands, for Prometheus."""

    def __init__(self) -> None:
        self.commit_seconds = Histogram(
            "covey_commit_seconds",
            "Duration of a write transaction of this process, with the wait for its turn.",
            buckets=LATENCY_SECONDS,
            registry=None,
        )
        self.command_seconds = Histogram(
            "covey_command_seconds",
            "Duration of a command in a write transaction, without the wait and the commit.",
            ["command"],
            buckets=LATENCY_SECONDS,
            registry=None,
        )

    def __iter__(self) -> Iterator[Collector]:
        """Iterate over all metrics."""
        yield from (self.commit_seconds, self.command_seconds)


class Writer:
    """Applies commands in its own thread. Example: `writer.submit(count_rows, patience_s=10).result()`."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Connection]]) -> None:
        """Create a writer. `begin` opens a write transaction, which is committed at the end of its block."""
        self._begin = begin
        self._queue: SimpleQueue[_Command | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._starting = Lock()
        self._is_closing = False
        self.meter = WriterMeter()

    def submit(
        self, work: Callable[[Repository], Result], *, patience_s: float, name: str = "other"
    ) -> "Future[Result]":
        """Enqueue a command. It is skipped if its turn does not come within `patience_s` seconds, or if it is canceled.

        `name` is its label in metrics. The future raises the command's error, or TransientError if the transaction was
        not committed.
        """
        with self._starting:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="writer", daemon=True)
                self._thread.start()
        command = _Command(work, name, Future(), time.monotonic() + patience_s)
        self._queue.put(command)
        return command.future

    def close(self) -> None:
        """Apply the enqueued commands, and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread, self._is_closing = None, False

    def _run(self) -> None:
        while not self._is_closing:
            first = self._queue.get()
            if first is not None:
                self._commit(first)
            else:
                self._is_closing = True

    def _commit(self, first: _Command) -> None:
        """Apply commands in one transaction, commit it, and give the callers their results."""
        if not first.future.set_running_or_notify_cancel():
            return
        commands: list[_Command] = []
        outcomes: list[_Outcome] = []
        commit, started = _Outcome(), time.monotonic()
        with commit, self._begin() as connection:
            for command in self._take(first):
                commands.append(command)
                is_alone = command is first and self._queue.empty()
                begun = time.monotonic()
                outcomes.append(_apply(connection, command, is_alone=is_alone))
                self.meter.command_seconds.labels(command.name).observe(time.monotonic() - begun)
                if is_alone and outcomes[0].error is not None:
                    raise outcomes[0].error  # Roll back, because no other command has changed anything.
        if commit.error is not None:  # Nothing was committed.
            for command in commands or [first]:
                command.future.set_exception(commit.error)
            return
        self.meter.commit_seconds.observe(time.monotonic() - started)
        for command, outcome in zip(commands, outcomes, strict=True):
            if outcome.error is None:
                command.future.set_result(outcome.result)
            else:
                command.future.set_exception(outcome.error)

    def _take(self, first: _Command) -> Iterator[_Command]:
        """Yield the first command and the enqueued ones after it, up to the limits of one transaction."""
        end, count = time.monotonic() + SLICE_SECONDS, 1
        yield first
        while count < MAX_COMMANDS and time.monotonic() < end:
            try:
                command = self._queue.get_nowait()
            except Empty:
                return
            if command is None:
                self._is_closing = True
                return
            if command.future.set_running_or_notify_cancel():
                yield command
                count += 1


def _apply(connection: Connection, command: _Command, *, is_alone: bool) -> _Outcome:
    """Apply a command. If the transaction has other commands, a savepoint confines a failure to this one.

    A command that is alone needs no savepoint, which saves two round trips to the database.
    """
    outcome = _Outcome()
    with outcome:
        if time.monotonic() > command.expires_at:
            raise TransientError("database_busy", "the database was busy for too long")
        with (
            Session(
                connection,
                join_transaction_mode="rollback_only" if is_alone else "create_savepoint",
                expire_on_commit=False,
            ) as session,
            session.begin(),
        ):
            outcome.result = command.work(Repository(session))
    if isinstance(outcome.error, OperationalError | PendingRollbackError | InterfaceError):
        raise outcome.error  # The database has failed, not the command, so the whole transaction is rolled back.
    return outcome
