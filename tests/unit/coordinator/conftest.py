"""Every test of rows runs on a real file of SQLite, and again on PostgreSQL where one answers.

Tests of the rules in `domain` take one of both in a slice, by their names, and both in the full run. Those of queries
always take both. A database is shared by all tests, each of which finds it empty: its engine then compiles each query
only once.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.db.database import Database
from tests.fakes.databases import empty, is_postgres_there, open_postgres, open_sqlite
from tests.fakes.pool import FakePool, make_address, make_params
from tests.fakes.transaction_watch import calls_while_writing

__all__ = ["calls_while_writing"]


DOMAIN = Path(__file__).parent / "domain"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not is_postgres_there():
        return
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == DOMAIN and hasattr(item, "callspec"):
            chosen = ("sqlite", "postgres")[zlib.crc32(f"{item.path.name} {item.originalname}".encode()) % 2]
            if item.callspec.params.get("database", chosen) != chosen:
                item.add_marker(pytest.mark.full)


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with open_sqlite(tmp_path_factory.mktemp("database") / "coordinator.sqlite3") as opened:
        yield opened


@pytest.fixture(scope="session")
def postgres() -> Iterator[Database]:
    with open_postgres() as opened:
        yield opened


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def database(request: pytest.FixtureRequest) -> Database:
    opened: Database = request.getfixturevalue(request.param)
    empty(opened)
    return opened


@pytest.fixture
def pool(database: Database) -> FakePool:
    return FakePool(database)


@pytest.fixture
def submitted(pool: FakePool) -> tuple[FakePool, str]:
    """One submission of node a with two judgements open; five validators, a quorum of two."""
    pool.validators = [make_address(f"validator-{i}") for i in range(5)]
    pool.register("a", "b")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.dispatch()
    return pool, receipt_hash


@pytest.fixture
def earning(pool: FakePool) -> FakePool:
    """Eight tasks out; an epoch closes after 20 s or four leaves."""
    pool.params = make_params(max_staleness=3, epoch_seconds=20, epoch_leaves=4)
    pool.register("a", "b", "cheat")
    pool.publish(0)
    return pool
