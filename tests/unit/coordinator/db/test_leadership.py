"""At most one process leads, and another one does after it."""

import errno
import fcntl
import time
from pathlib import Path

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from coordinator.db import leadership
from coordinator.db.database import Database
from coordinator.db.leadership import FileLeadership, PostgresLeadership

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "LOOK_SECONDS", 0.0)


def test_is_held__two_that_share_a_database__one_leads_and_then_the_other(database: Database):
    first, second = database.open_leadership("beat"), database.open_leadership("beat")
    other = database.open_leadership("another")
    assert [first.is_held(), second.is_held(), first.is_held(), other.is_held()] == [True, False, True, True]
    first.close()
    deadline = time.monotonic() + HANG_S
    while not second.is_held():  # PostgreSQL ends a session shortly after its connection.
        assert time.monotonic() < deadline
    assert not first.is_held()
    second.close()
    other.close()


def test_is_held__connection_is_lost__is_lost_with_it(database: Database):
    first = database.open_leadership("beat")
    assert first.is_held()
    if isinstance(first, PostgresLeadership):
        session = first._connection.connection.dbapi_connection.info.backend_pid
        with database._engine.connect() as killing:
            killing.execute(text("SELECT pg_terminate_backend(:session)"), {"session": session})
        assert not first.is_held()
    first.close()


def test_is_held__file_cannot_be_opened__is_not_held_until_it_can(tmp_path: Path):
    leads = FileLeadership(tmp_path / "later" / "beat")
    with capture_logs() as logs:
        assert [leads.is_held(), leads.is_held()] == [False, False]
    assert [line["event"] for line in logs] == ["a lock cannot be taken"], "it is logged once"
    (tmp_path / "later").mkdir()
    assert leads.is_held()
    leads.close()


def test_is_held__file_cannot_be_locked__is_not_held_and_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = []

    def fail(file: object, _: int) -> None:
        files.append(file)
        raise OSError(errno.ENOLCK, "no locks available")

    leads = FileLeadership(tmp_path / "beat")
    with monkeypatch.context() as broken:
        broken.setattr(fcntl, "flock", fail)
        assert not leads.is_held()
    assert [file.closed for file in files] == [True]
    assert leads.is_held()
    leads.close()
