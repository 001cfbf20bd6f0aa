"""A lock that one process holds among those that share a database. It is freed when its process or connection ends."""

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
"""Time in seconds between attempts to take the lock, and between checks that this process still holds it."""


class Leadership(Protocol):
    """A lock that at most one process holds. Example: `if leadership.is_held(): send_all()`."""

    def is_held(self) -> bool:
        """Return whether this process holds the lock. Takes it if it is free."""

    def close(self) -> None:
        """Release the lock."""


class FileLeadership:
    """A file lock for the processes of one machine. Example: `FileLeadership(home / "rows.sqlite3.beat")`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIOWrapper | None = None
        self._has_failed = False
        """Whether the last attempt to open or lock the file failed. Only the first of several failures is logged."""
        self._looked_at = float("-inf")

    def is_held(self) -> bool:
        """Return whether this process holds the lock. Takes it if it is free."""
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
        """Release the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _look(self) -> None:
        """Take the lock if it is free. Raises OSError if the file cannot be opened or locked."""
        with ExitStack() as opened:
            file = opened.enter_context(self._path.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            opened.pop_all()
        self._file, self._has_failed = file, False


class PostgresLeadership:
    """A session-level advisory lock of PostgreSQL. Example: `PostgresLeadership(engine, "beat").is_held()`.

    The server frees the lock when the connection is lost, so each look checks that the connection is alive.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name
        self._connection: Any = None
        """Connection that holds the lock. None while this process does not hold it."""
        self._looked_at = float("-inf")

    def is_held(self) -> bool:
        """Return whether this process holds the lock. Takes it if it is free."""
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = time.monotonic()
            try:
                self._look()
            except SQLAlchemyError:
                self.close()
        return self._connection is not None

    def close(self) -> None:
        """Release the lock."""
        if self._connection is not None:
            self._connection.invalidate()  # In the pool, the connection would keep the lock.
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
