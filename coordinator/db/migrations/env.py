"""Alembic's entry: the engine comes from `coordinator.db.schema_version`."""

from collections.abc import Iterator
from contextlib import contextmanager

from alembic import context
from sqlalchemy import Connection

from coordinator.db.connection import lock_writers_out
from coordinator.db.models import Base


@contextmanager
def free_references(connection: Connection) -> Iterator[None]:
    """SQLite changes a table by copying and dropping it, which it refuses while rows of others point to it; the switch
    works outside a transaction only."""
    raw = connection.connection.driver_connection
    if connection.dialect.name != "sqlite" or raw is None:
        yield
        return
    raw.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        raw.execute("PRAGMA foreign_keys=ON")


engine = context.config.attributes["engine"]
with engine.connect() as connection, free_references(connection), connection.begin():
    if connection.dialect.name == "postgresql":
        lock_writers_out(connection)  # all steps in one transaction: no other process finds tables half-way
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # a large table may take minutes
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    context.run_migrations()
