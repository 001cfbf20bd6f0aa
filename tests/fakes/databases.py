"""Migrated databases for tests: a SQLite file and, if a PostgreSQL server answers, a separate schema on it."""

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from coordinator.db.database import Database
from coordinator.db.models import Base

POSTGRES = "postgresql+psycopg://root@127.0.0.1:5432/test"


@cache
def is_postgres_there() -> bool:
    """Return whether a PostgreSQL server answers."""
    engine = create_engine(get_postgres_url(), connect_args={"connect_timeout": 2})
    try:
        engine.connect().close()
    except OperationalError:
        return False
    finally:
        engine.dispose()
    return True


def get_postgres_url() -> str:
    """Return the URL of the server for tests."""
    return os.environ.get("COVEY_TEST_POSTGRES", POSTGRES)


@contextmanager
def open_sqlite(path: Path) -> Iterator[Database]:
    """Open a new SQLite file with the tables."""
    with closing(Database(f"sqlite:///{path}")) as database:
        database.prepare()
        yield database


@contextmanager
def open_postgres() -> Iterator[Database]:
    """Open a schema with the tables, which is dropped at the end. Skips the test if no server answers."""
    with open_schema() as url, closing(Database(url)) as database:
        database.prepare()
        yield database


@contextmanager
def open_schema() -> Iterator[str]:
    """Yield the URL of a new, empty schema, which is dropped at the end. Skips the test if no server answers."""
    url = get_postgres_url()
    schema = f"covey_test_{secrets.token_hex(4)}"
    admin = create_engine(url, connect_args={"connect_timeout": 10})
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
    """Delete every row, and restart all counters."""
    with database.write() as rows:
        for table in reversed(Base.metadata.sorted_tables):
            rows.session.execute(table.delete())
        if rows.session.get_bind().dialect.name == "postgresql":
            for name in ("tasks_id", "judgements_id", "intents_position"):
                rows.session.execute(text(f"ALTER SEQUENCE {name}_seq RESTART"))
