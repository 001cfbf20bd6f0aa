"""Migrated databases for tests: a file of SQLite, and a schema of its own in PostgreSQL where one answers."""

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from coordinator.db.database import Database
from coordinator.db.models import Base

POSTGRES = "postgresql+psycopg://root@127.0.0.1:5432/test"


@contextmanager
def open_sqlite(path: Path) -> Iterator[Database]:
    """A new, migrated file."""
    with closing(Database(f"sqlite:///{path}")) as database:
        database.migrate()
        yield database


@contextmanager
def open_postgres() -> Iterator[Database]:
    """A migrated schema that is dropped at the end; skips where no server answers."""
    with open_schema() as url, closing(Database(url)) as database:
        database.migrate()
        yield database


@contextmanager
def open_schema() -> Iterator[str]:
    """The URL of a new, empty schema that is dropped at the end; skips where no server answers."""
    url = os.environ.get("COVEY_TEST_POSTGRES", POSTGRES)
    schema = f"covey_test_{secrets.token_hex(4)}"
    admin = create_engine(url, connect_args={"connect_timeout": 2})
    try:
        with admin.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
    except OperationalError as error:
        admin.dispose()
        pytest.skip(f"no PostgreSQL answers: {str(error.orig).strip()}")
    try:
        yield f"{url}?options=-csearch_path%3D{schema}%20-csynchronous_commit%3Doff"
    finally:
        with admin.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        admin.dispose()


def empty(database: Database) -> None:
    """Forget every row, and start counting anew."""
    with database.write() as rows:
        for table in reversed(Base.metadata.sorted_tables):
            rows.session.execute(table.delete())
        if rows.session.get_bind().dialect.name == "postgresql":
            for name in ("tasks_id", "judgements_id", "intents_position"):
                rows.session.execute(text(f"ALTER SEQUENCE {name}_seq RESTART"))
