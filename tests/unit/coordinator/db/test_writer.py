import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from coordinator.db import writer
from coordinator.db.database import Database
from coordinator.db.repository import Repository
from coordinator.db.writer import Writer
from covey.errors import ProtocolError, TransientError

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


def add(name: str, *, fails: bool = False) -> Callable[[Repository], int]:
    def work(rows: Repository) -> int:
        rows.set_fact(name, rows.get_fact(name) + 1)
        if fails:
            raise ProtocolError("refused", "as asked")
        return rows.get_fact(name)

    return work


@pytest.fixture
def held(database: Database) -> Callable[..., list[Future[Any]]]:
    """Submit four commands while another writer holds the lock, so that all are applied in one transaction."""

    def submit(*, failing: int = 1) -> list[Future[Any]]:
        with database.write():
            futures = [database._writer.submit(add("a", fails=i == failing), patience_s=HANG_S) for i in range(4)]
            time.sleep(0.05)
            assert not any(future.done() for future in futures)
        return futures

    return submit


def read_fact(database: Database, name: str) -> int:
    with database.read() as rows:
        return rows.get_fact(name)


@pytest.mark.parametrize("failing", range(4))
def test_submit__one_of_several_fails__is_undone_alone(
    database: Database, held: Callable[..., list[Future[Any]]], failing: int
):
    futures = held(failing=failing)
    with pytest.raises(ProtocolError):
        futures.pop(failing).result(HANG_S)
    assert [future.result(HANG_S) for future in futures] == [1, 2, 3]
    assert read_fact(database, "a") == 3


def test_submit__many__share_a_transaction(database: Database, held: Callable[..., list[Future[Any]]], monkeypatch):
    monkeypatch.setattr(writer, "SLICE_SECONDS", 10.0 * HANG_S)  # However slow this machine is.
    begun = []
    begin = database._writer._begin
    monkeypatch.setattr(database._writer, "_begin", lambda: begun.append(1) or begin())
    for future in held():
        future.exception(HANG_S)
    assert len(begun) <= 2, "the first one may begin before the others come"


def test_submit__cancelled_before_its_turn__is_not_applied(database: Database):
    with database.write():
        first = database._writer.submit(add("a"), patience_s=HANG_S)
        second = database._writer.submit(add("b"), patience_s=HANG_S)
        assert second.cancel()
    assert first.result(HANG_S) == 1
    assert database._writer.submit(add("c"), patience_s=HANG_S).result(HANG_S) == 1
    assert read_fact(database, "b") == 0


def test_submit__turn_comes_too_late__is_not_applied(database: Database):
    with database.write():
        late = database._writer.submit(add("a"), patience_s=0.01)
        time.sleep(0.05)
    with pytest.raises(TransientError) as caught:
        late.result(HANG_S)
    assert caught.value.code == "database_busy"
    assert read_fact(database, "a") == 0


def test_submit__transaction_cannot_begin__tells_all_and_goes_on():
    def begin() -> Any:
        raise TransientError("database_unavailable", "gone")

    writer = Writer(begin)
    for _ in range(2):
        with pytest.raises(TransientError):
            writer.submit(add("a"), patience_s=HANG_S).result(HANG_S)
    writer.close()


def test_submit__database_fails_within_a_command__undoes_all_and_says_so(database: Database):
    def fail(rows: Repository) -> None:
        raise OperationalError("SELECT 1", {}, RuntimeError("disk is full"))

    with database.write():
        futures = [database._writer.submit(work, patience_s=HANG_S) for work in (add("a"), fail, add("a"))]
        time.sleep(0.05)
    codes = [type(future.exception(HANG_S)) for future in futures]
    assert codes[1] is TransientError
    assert codes[0] in (TransientError, type(None)), "the first one may be in a transaction of its own"
    before = read_fact(database, "a")
    assert before == codes.count(type(None))
    assert database._writer.submit(add("a"), patience_s=HANG_S).result(HANG_S) == before + 1


def test_close__commands_that_wait__are_applied(database: Database):
    futures = [database._writer.submit(add("a"), patience_s=HANG_S) for _ in range(20)]
    database._writer.close()
    assert [future.result(0) for future in futures] == list(range(1, 21))
    assert database._writer.submit(add("a"), patience_s=HANG_S).result(HANG_S) == 21, "a new thread begins"
