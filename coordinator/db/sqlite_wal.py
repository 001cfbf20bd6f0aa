"""SQLite's write-ahead log, with which readers can continue while one process writes."""

import sqlite3
import time
from threading import Event as Flag

BUSY_SECONDS = 15
"""Maximum time in seconds that SQLite waits for another process's lock."""

_OCCUPIED = ("SQLITE_BUSY", "SQLITE_LOCKED")


def switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch a database to write-ahead logging, and wait while other processes do the same.

    SQLite's own timeout does not apply to this statement, which fails if several processes open a new file at once.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith(_OCCUPIED) or time.monotonic() >= deadline:
                raise
            Flag().wait(0.02)
        else:
            return
