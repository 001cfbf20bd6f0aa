"""The guard of all tests of the coordinator: a call elsewhere within a write transaction is noted."""

import time
from pathlib import Path

import pytest

from coordinator.db.database import Database
from covey.object_store import LinkSigner, ObjectStore

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore.open(f"file://{tmp_path}", LinkSigner(secret=b"s", base_url="http://x"))


def test_guard__call_within_a_write_transaction__is_noted(
    database: Database, store: ObjectStore, calls_while_writing: list[str]
):
    with database.write():
        store.delete("uploads/1")
    assert calls_while_writing == ["ObjectStore.delete"]
    calls_while_writing.clear()


def test_guard__call_outside_or_while_reading__is_not_noted(
    database: Database, store: ObjectStore, calls_while_writing: list[str]
):
    with database.read():
        store.delete("uploads/1")
    with database.write():
        pass
    store.delete("uploads/1")
    assert calls_while_writing == []


async def test_guard__call_within_a_command_of_the_writer__is_noted(
    database: Database, store: ObjectStore, calls_while_writing: list[str]
):
    await database.run(lambda _: store.delete("uploads/1"))
    assert calls_while_writing == ["ObjectStore.delete"]
    calls_while_writing.clear()


def test_read_commit__during_and_after_a_transaction__counts_only_what_a_new_one_sees(database: Database):
    before = database.read_commit()
    with database.write() as rows:
        rows.set_fact("a", 1)
        during = database.read_commit()
    own = database.newest_commit
    assert own is not None
    assert before <= during < own
    wait_until_a_new_transaction_sees(own, database)


def test_newest_commit__other_process_commits_or_own_one_fails__stays(database: Database):
    other = Database(database.url)
    try:
        with database.write() as rows:
            rows.set_fact("a", 1)
        own = database.newest_commit
        with other.write() as rows:
            rows.set_fact("a", 2)
        with pytest.raises(KeyError), database.write() as rows:
            raise KeyError
        assert database.newest_commit == own
        theirs = other.newest_commit
        assert (theirs or 0) > (own or 0)
        wait_until_a_new_transaction_sees(theirs or 0, other)
    finally:
        other.close()


def wait_until_a_new_transaction_sees(number: int, database: Database) -> None:
    """Wait: on PostgreSQL, an older transaction of another database of the same server holds the count back."""
    deadline = time.monotonic() + 60
    while database.read_commit() < number:
        assert time.monotonic() < deadline
        time.sleep(0.01)
