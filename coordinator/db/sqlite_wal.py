"""SQLite's write-ahead log, which readers need to go on while one process writes."""

import sqlite3
import time
from threading import Event as Flag

BUSY_SECONDS = 15
"""How long SQLite waits for another process's lock."""

_OCCUPIED = ("SQLITE_BUSY", "SQLITE_LOCKED")


def switch_to_wal(connection: sqlite3.Connection) -> None:
    """The one statement for which SQLite does not wait by itself: processes that open a new file at once meet here."""
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
