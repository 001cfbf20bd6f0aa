"""The lock of one process among those that share a database. It ends with its process or its connection."""

import fcntl
import time
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from covey.runtime.log import get_logger

LOOK_SECONDS = 1.0
"""Seconds between two attempts to get the lock, and between two checks that this process still has PostgreSQL's."""


class Leadership(Protocol):
    """Example: `if leadership.is_held(): send_all()`."""

    def is_held(self) -> bool:
        """Return whether this process has the lock, which it takes if nobody has it."""

    def close(self) -> None:
        """Give the lock back."""


class FileLeadership:
    """A lock on a file, for the processes of one machine. Example: `FileLeadership(home / "rows.sqlite3.beat")`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIOWrapper | None = None
        self._has_failed = False
        """Whether the file could not be opened or locked at the last attempt, which is logged once."""
        self._looked_at = float("-inf")

    def is_held(self) -> bool:
        """Return whether this process has the lock, which it takes if nobody has it."""
        if self._file is None and time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = time.monotonic()
            try:
                self._look()
            except OSError as error:
                if not self._has_failed:
                    get_logger().error("a lock cannot be taken", path=str(self._path), error=str(error))
                self._has_failed = True
        return self._file is not None

    def close(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _look(self) -> None:
        """Take the lock if nobody has it. Raises OSError if the file cannot be opened or locked."""
        with ExitStack() as opened:
            file = opened.enter_context(self._path.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            opened.pop_all()
        self._file, self._has_failed = file, False


class PostgresLeadership:
    """PostgreSQL's advisory lock of a session. Example: `PostgresLeadership(engine, "beat").is_held()`.

    A session whose connection is lost has lost the lock. Each look makes sure of that.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name
        self._connection: Any = None
        """Connection that has the lock. None while another process has it."""
        self._looked_at = float("-inf")

    def is_held(self) -> bool:
        """Return whether this process has the lock, which it takes if nobody has it."""
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = time.monotonic()
            try:
                self._look()
            except SQLAlchemyError:
                self.close()
        return self._connection is not None

    def close(self) -> None:
        """Give the lock back."""
        if self._connection is not None:
            self._connection.invalidate()  # Closed and not returned to the pool, where it would keep the lock.
            self._connection.close()
            self._connection = None

    def _look(self) -> None:
        if self._connection is not None:
            self._connection.execute(text("SELECT 1"))
            return
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        lock = text("SELECT pg_try_advisory_lock(hashtextextended(current_schema() || ' ' || :name, 0))")
        if connection.scalar(lock, {"name": self._name}):
            self._connection = connection
        else:
            connection.close()
