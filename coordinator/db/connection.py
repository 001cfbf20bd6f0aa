"""The connection to the database: SQLite or PostgreSQL, its lock for the one writer, its migrations, its outages."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import alembic.command
import alembic.config
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError

from coordinator.db.sqlite_wal import BUSY_SECONDS, switch_to_wal
from covey.errors import TransientError

_WRITER_LOCK = 0x636F766579  # "covey"


def build(url: str) -> Engine:
    """The engine of a database.  Its connections take SQLite's write lock at BEGIN if the engine's option `covey_begin`
    is "IMMEDIATE"."""
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})
    _prepare_sqlite(engine)
    return engine


def migrate(engine: Engine) -> None:
    """Bring the tables up to date, alone: the processes of a coordinator start at once.

    Raise TransientError when the database does not answer.
    """
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["engine"] = engine
    with translate_outage():
        alembic.command.upgrade(config, "head")


def lock_writers_out(connection: Connection) -> None:
    """Until the transaction ends; SQLite's BEGIN has done it."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _WRITER_LOCK})


@contextmanager
def translate_outage() -> Iterator[None]:
    """Raise TransientError("database_unavailable") for SQLAlchemy's OperationalError."""
    try:
        yield
    except OperationalError as error:
        raise TransientError("database_unavailable", str(error.orig)) from error


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _on_connect(connection, _record) -> None:  # type: ignore[no-untyped-def]
        connection.isolation_level = None  # BEGIN is ours
        switch_to_wal(connection)
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _on_begin(connection) -> None:  # type: ignore[no-untyped-def]
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('covey_begin', 'IMMEDIATE')}")
