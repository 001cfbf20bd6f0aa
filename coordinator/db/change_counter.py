"""Whether the database has changed, so that a waiting request looks at its rows only then."""

import sqlite3
from threading import Lock


class ChangeCounter:
    """SQLite's count of the commits of all other connections, of any process; it costs microseconds.

    Example: `ChangeCounter("home/coordinator.sqlite3").read()`.
    """

    def __init__(self, file: str | None) -> None:
        self._file, self._lock = file, Lock()
        self._connection: sqlite3.Connection | None = None

    def read(self) -> int | None:
        """A number that differs from the last one after a commit.

        None where nobody counts: another database than SQLite, or one that does not answer now.
        """
        if not self._file:
            return None
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = sqlite3.connect(self._file, timeout=0, check_same_thread=False)
                return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error:
                return None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
