"""The database: one transaction at a time writes, whatever the backend.

SQLite takes its write lock at BEGIN, PostgreSQL an advisory lock.  That serialises changes of state, so the domain
needs no row locks.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from coordinator.db import connection
from coordinator.db.change_counter import ChangeCounter
from coordinator.db.repository import Repository


class Database:
    """Example: `with Database(url).write() as repository: ...` commits at the end, or rolls back."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = connection.build(url)
        self.changes = ChangeCounter(self._engine.url.database if url.startswith("sqlite") else None)

    def migrate(self) -> None:
        """Bring the tables up to date; raise TransientError when the database does not answer."""
        connection.migrate(self._engine)

    @contextmanager
    def write(self) -> Iterator["Repository"]:
        """The one writing transaction; raise TransientError when the database does not answer."""
        with self._session("IMMEDIATE") as session:
            connection.lock_writers_out(session.connection())
            yield Repository(session)

    @contextmanager
    def read(self) -> Iterator["Repository"]:
        """A transaction that changes nothing."""
        with self._session("DEFERRED") as session:
            yield Repository(session)

    @contextmanager
    def _session(self, mode: str) -> Iterator[Session]:
        bound = self._engine.execution_options(covey_begin=mode)
        with connection.translate_outage(), Session(bound, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        self.changes.close()
        self._engine.dispose()
