"""The database. With either backend, at most one transaction writes at a time.

A `WriteLock` orders the writers of SQLite, and an advisory lock those of PostgreSQL. Because changes of state are
serialized, the domain needs no row locks. A process with many callers uses `run`, which commits many commands at once.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from coordinator.db import connection, schema_version
from coordinator.db.change_counter import ChangeCounter, PostgresCommits, SqliteCommits
from coordinator.db.leadership import FileLeadership, Leadership, PostgresLeadership
from coordinator.db.repository import Repository
from coordinator.db.write_lock import WriteLock
from coordinator.db.writer import Writer, WriterMeter
from covey.errors import TransientError

PATIENCE_SECONDS = 20.0
"""Maximum time in seconds that a caller waits for its turn to write, or for the result of a query."""
READERS = 4
"""Maximum number of concurrent `query` calls."""
Result = TypeVar("Result")


class Database:
    """Opens transactions. Example: `with Database(url).write() as repository: ...` commits at the end or rolls back."""

    def __init__(self, url: str, *, is_read_only: bool = False) -> None:
        """With `is_read_only` the database itself refuses every change."""
        self.url = url
        self._engine = connection.build(url, is_read_only=is_read_only)
        self._reading = self._engine.execution_options(covey_begin="DEFERRED")
        self._writing = self._engine.execution_options(covey_begin="IMMEDIATE")
        file = self._engine.url.database if url.startswith("sqlite") else None
        self._lock = None if file is None else WriteLock(Path(file))
        self._writer = Writer(self._begin)
        self.newest_commit: int | None = None
        """Number of this process's newest commit, comparable with `read_commit`. None before the first commit."""
        self._noting = Lock()
        self._readers = ThreadPoolExecutor(READERS, "reader")
        self.changes: ChangeCounter = PostgresCommits(self._engine) if file is None else SqliteCommits(file)

    def prepare(self) -> None:
        """Create the tables of an empty database. Raises the errors of `schema_version.prepare_tables`."""
        schema_version.prepare_tables(self._engine)

    def require_tables(self) -> None:
        """Return if the tables are those of this version, and change nothing. Raises the errors of `require_tables`."""
        schema_version.require_tables(self._engine)

    def migrate(self) -> bool:
        """Migrate the tables to this version of Covey, and return whether anything changed.

        Raises the errors of `schema_version.migrate`.
        """
        return schema_version.migrate(self._engine)

    @contextmanager
    def write(self) -> Iterator[Repository]:
        """Open a write transaction, of which only one exists at a time.

        Raises TransientError if the database does not answer.
        """
        with self._begin() as opened, Session(opened, expire_on_commit=False) as session:
            yield Repository(session)
            session.flush()

    @contextmanager
    def read(self) -> Iterator[Repository]:
        """Open a read-only transaction."""
        with connection.translate_outage(), Session(self._reading, expire_on_commit=False) as session, session.begin():
            yield Repository(session)

    async def run(self, work: Callable[[Repository], Result], *, name: str = "other") -> Result:
        """Apply a command, and return its result after the commit. `name` is its label in metrics.

        Raises the command's error, or TransientError if the database did not commit in time.
        """
        waiting = asyncio.wrap_future(self._writer.submit(work, name=name, patience_s=PATIENCE_SECONDS))
        try:
            async with asyncio.timeout(2 * PATIENCE_SECONDS):  # A command that has begun may take as long again.
                return await waiting
        except TimeoutError:
            raise TransientError("database_busy", "the database did not commit in time") from None

    async def query(self, work: Callable[[Repository], Result]) -> Result:
        """Return the result of a read-only function. It never waits for a writer.

        Raises TransientError if the database does not answer in time.
        """

        def read() -> Result:
            with self.read() as repository:
                return work(repository)

        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._readers, read)
        except TimeoutError:
            raise TransientError("database_busy", "the database did not answer in time") from None

    def read_commit(self) -> int:
        """Return the number of a recent commit of any process.

        A transaction that begins now sees this commit and all earlier ones.

        Raises TransientError if the database does not answer.
        """
        return connection.read_commit(self._engine) if self._lock is None else self._lock.read_count()

    def open_leadership(self, name: str) -> Leadership:
        """Return a lock that at most one process of this database holds at a time."""
        file = self._engine.url.database
        if self._lock is None or file is None:
            return PostgresLeadership(self._engine, name)
        return FileLeadership(Path(f"{file}.{name}"))

    @property
    def writer_meter(self) -> WriterMeter:
        """Number and duration of this process's commits."""
        return self._writer.meter

    def close(self) -> None:
        """Apply the waiting commands, and close all connections."""
        self._writer.close()
        self._readers.shutdown()
        self.changes.close()
        self._engine.dispose()

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        """Begin a write transaction. Commit it at the end of the block, or roll it back after an error."""
        with connection.translate_outage():
            if self._lock is None:
                with self._writing.begin() as opened:
                    number = connection.lock_writers_out(opened)
                    yield opened
            else:
                with self._lock.hold() as number, self._writing.begin() as opened:
                    yield opened
            with self._noting:
                self.newest_commit = max(number, self.newest_commit or 0)
