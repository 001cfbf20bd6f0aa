"""Counters of commits. A waiting request reads its rows only after the count has changed."""

import sqlite3
import time
from threading import Lock, Thread
from typing import Any, Protocol

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

RETRY_SECONDS = 1.0
"""Minimum time in seconds between two attempts to listen to PostgreSQL."""
CHANNEL = "'covey_' || md5(current_schema())"
"""SQL expression for the name of the NOTIFY channel that announces commits. Each pool's schema has its own channel."""


class ChangeCounter(Protocol):
    """Counts the commits of all processes. `read` takes microseconds and never blocks."""

    def read(self) -> int | None:
        """Return a number that changes after each commit, or None while commits cannot be counted."""

    def close(self) -> None:
        """Stop counting and close the connection."""


class SqliteCommits:
    """SQLite's own count of commits by other connections. Example: `SqliteCommits("home/rows.sqlite3").read()`."""

    def __init__(self, file: str) -> None:
        self._file, self._lock = file, Lock()
        self._connection: sqlite3.Connection | None = None

    def read(self) -> int | None:
        """Return a number that changes after each commit, or None if the file cannot be read now."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = sqlite3.connect(self._file, timeout=0, check_same_thread=False)
                return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error:
                return None

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class PostgresCommits:
    """Counts the commits that `connection.lock_writers_out` announces. Example: `PostgresCommits(engine).read()`.

    A thread reopens a connection that the server has closed, because reconnecting may take seconds.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock = engine, Lock()
        self._connection: Any = None
        """The psycopg connection that listens for announcements, or None while there is none."""
        self._count = 0
        self._retry_at = float("-inf")
        self._is_closed = False

    def read(self) -> int | None:
        """Return a number that changes within milliseconds of each commit, or None while no connection listens."""
        with self._lock:
            if self._connection is None:
                self._begin_to_listen()
                return None
            try:
                self._count += sum(1 for _ in self._connection.notifies(timeout=0))
            except self._connection.Error:
                self._connection.close()
                self._connection = None
                return None
            return self._count

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _begin_to_listen(self) -> None:
        if not self._is_closed and time.monotonic() >= self._retry_at:
            self._retry_at = float("inf")
            Thread(target=self._listen, name="change counter", daemon=True).start()

    def _listen(self) -> None:
        found = None
        try:
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()
            connection.execute(text(f"LISTEN {connection.scalar(text(f'SELECT {CHANNEL}'))}"))
            found = connection.connection.dbapi_connection
        except SQLAlchemyError:
            pass  # The next `read` tries again.
        with self._lock:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._count += 1  # Commits may have been missed while no connection listened.
            self._connection = found
            if self._is_closed and found is not None:
                found.close()
                self._connection = None
