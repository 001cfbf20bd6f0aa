"""Connections to SQLite or PostgreSQL: engines, the lock of the single writer, and errors during outages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import InterfaceError, OperationalError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from coordinator.db.change_counter import CHANNEL
from coordinator.db.sqlite_wal import BUSY_SECONDS, switch_to_wal
from covey.errors import OperatorError, TransientError

WAIT_SECONDS = 15
"""Maximum time in seconds that a statement waits for a lock, and that a thread waits for a connection."""
_REFUSALS = re.compile(
    r'(role|database) ".*" does not exist|password authentication failed.*|no password supplied|no pg_hba\.conf entry.*'
)
"""Messages of PostgreSQL for refusals that last until somebody changes the server or `database_url`."""
_OPTIONS = (
    f"-c lock_timeout={WAIT_SECONDS}s -c statement_timeout={2 * WAIT_SECONDS}s"
    f" -c tcp_keepalives_idle={WAIT_SECONDS} -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
)
"""Server settings of each connection. The keepalives end the session of a client whose host is gone, which would
otherwise hold its advisory locks for hours."""

_NETWORK = {
    "connect_timeout": str(WAIT_SECONDS),
    "tcp_user_timeout": str(2000 * WAIT_SECONDS),
    "keepalives_idle": str(WAIT_SECONDS),
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
"""Options of libpq that close a connection to a server whose host is gone."""


def build(url: str, *, is_read_only: bool = False) -> Engine:
    """Return an engine for a database. With `is_read_only`, the database itself refuses every change.

    With SQLite, its connections take the write lock at BEGIN if the engine's option `covey_begin` is "IMMEDIATE".

    Raises OperatorError("no_psycopg") if the URL names PostgreSQL and its driver is not installed.
    """
    if not url.startswith("sqlite"):
        try:
            sent = _OPTIONS + (" -c default_transaction_read_only=on" if is_read_only else "")
            return create_engine(_add_options(url, sent), pool_pre_ping=True, pool_timeout=WAIT_SECONDS)
        except ModuleNotFoundError as error:
            raise OperatorError(
                "no_psycopg", "the Python package psycopg is not installed", fix="Run pip install 'covey[postgres]'"
            ) from error
    options = {"covey_begin": "DEFERRED"} if is_read_only else {}
    arguments = {"timeout": BUSY_SECONDS, "check_same_thread": False}
    engine = create_engine(url, connect_args=arguments, execution_options=options)
    _prepare_sqlite(engine, is_read_only=is_read_only)
    return engine


def require_admitted(engine: Engine) -> None:
    """Connect once, to distinguish a refusal, which an operator must fix, from an outage, which ends by itself.

    Raises OperatorError("database_refused") if the server refuses the user or does not have the database, and
    TransientError("database_unavailable") if it does not answer.
    """
    try:
        with translate_outage():
            engine.connect().close()
    except TransientError as error:
        refusal = _REFUSALS.search(error.message)
        if refusal is None:
            raise
        raise OperatorError(
            "database_refused",
            f"the database server refuses the connection: {refusal[0]}",
            fix="Create the role and the database, or correct database_url",
        ) from error


def lock_writers_out(connection: Connection) -> int:
    """Lock out other writers of PostgreSQL until the transaction ends, and announce its commit to listeners.

    Returns the transaction id.
    """
    # Each schema has its own lock, so that two pools in one database do not wait for each other.
    lock = "pg_advisory_xact_lock(hashtextextended(current_schema(), 0))"
    row = connection.execute(text(f"SELECT {lock}, pg_notify({CHANNEL}, ''), txid_current()")).one()
    return int(row[2])


def read_commit(engine: Engine) -> int:
    """Return the id of a PostgreSQL transaction. A transaction that begins now sees this one and all earlier ones.

    The id may be older than the newest commit while an older transaction is open anywhere on the server, even in
    another database.

    Raises TransientError if the database does not answer.
    """
    with translate_outage(), engine.connect() as connection:
        return int(connection.scalar(text("SELECT txid_snapshot_xmin(txid_current_snapshot())")) or 0) - 1


@contextmanager
def translate_outage() -> Iterator[None]:
    """Translate SQLAlchemy's errors about an unavailable database to TransientError("database_unavailable")."""
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise TransientError("database_unavailable", str(error.orig)) from error
    except PendingRollbackError as error:
        raise TransientError("database_unavailable", "the transaction was ended by an earlier error") from error
    except PoolTimeoutError as error:
        raise TransientError("database_unavailable", "all connections to the database are in use") from error


def _add_options(url: str, options: str) -> URL:
    """Return a PostgreSQL URL with our timeouts added. The URL's own options take precedence."""
    parsed = make_url(url).set(drivername="postgresql+psycopg")
    parsed = parsed.update_query_dict({name: text for name, text in _NETWORK.items() if name not in parsed.query})
    given = parsed.query.get("options", "")
    return parsed.update_query_dict({"options": f"{options} {given if isinstance(given, str) else ' '.join(given)}"})


def _prepare_sqlite(engine: Engine, *, is_read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def _on_connect(connection, _record) -> None:  # type: ignore[no-untyped-def]
        connection.isolation_level = None  # `_on_begin` sends BEGIN itself.
        switch_to_wal(connection)
        connection.execute("PRAGMA synchronous=FULL")  # A countersignature must survive a power cut.
        connection.execute("PRAGMA foreign_keys=ON")
        if is_read_only:
            connection.execute("PRAGMA query_only=ON")

    @event.listens_for(engine, "begin")
    def _on_begin(connection) -> None:  # type: ignore[no-untyped-def]
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('covey_begin', 'IMMEDIATE')}")
