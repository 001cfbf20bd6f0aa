"""The database: one writer at a time, all or nothing, and what a reorganization takes back."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator.db.database import Database
from coordinator.db.models import CaseRow, EpochRow
from covey.errors import TransientError
from covey.protocol.status import CaseState
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit


def test_write__many_at_once__loses_no_change(database: Database):
    def add_one(_: int) -> None:
        with database.write() as rows:
            rows.set_fact("lease", rows.get_fact("lease") + 1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add_one, range(40)))
    with database.read() as rows:
        assert rows.get_fact("lease") == 40


def test_write__error_inside__changes_nothing(database: Database):
    def fail() -> None:
        with database.write() as rows:
            rows.set_fact("lease", 5)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with database.read() as rows:
        assert rows.get_fact("lease") == 0


def test_read__while_another_writes__sees_what_was_committed(database: Database):
    with database.write() as writer:
        writer.set_fact("lease", 5)
        with database.read() as reader:
            assert reader.get_fact("lease") == 0


def test_write__database_that_is_gone__is_transient():
    database = Database("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with pytest.raises(TransientError) as caught, database.write():
        pass
    assert caught.value.code == "database_unavailable"
    database.close()


def test_replace_blocks__some_are_kept__holds_those_named(database: Database):
    rounds = [
        [(10, make_hash("10")), (11, make_hash("11")), (12, make_hash("12"))],
        [(11, make_hash("11")), (12, make_hash("another 12")), (13, make_hash("13"))],
        [],
    ]
    for blocks in rounds:
        with database.write() as rows:
            rows.replace_blocks(blocks)
        with database.read() as rows:
            assert rows.list_blocks() == blocks


def test_forget_blocks_above__number__takes_back_what_came_later(database: Database):
    def case(number: int, block: int) -> CaseRow:
        return CaseRow(
            receipt_hash=make_hash(f"{number}"), node=make_address("a"), contributor=make_address("b"),
            state=CaseState.LOCKED, block_number=block, transaction_hash=make_hash("t"),
        )  # fmt: skip

    def epoch(number: int, block: int) -> EpochRow:
        return EpochRow(
            number=number, work_root=make_hash("w"), reward_root=make_hash("r"), data_hash=make_hash("d"),
            leaf_count=1, units=1, previous_hash=make_hash("p"), closed_at=0.0, posted_block=block, disabled=False,
        )  # fmt: skip

    with database.write() as rows:
        for row in (case(1, 10), case(2, 11), epoch(0, 10), epoch(1, 11)):
            rows.add(row)
        rows.set_fact("ended", 11)
        rows.replace_blocks([(10, make_hash("10")), (11, make_hash("11"))])
    with database.write() as rows:
        rows.forget_blocks_above(10)
    with database.read() as rows:
        assert [c.receipt_hash for c in rows.list_cases()] == [make_hash("1")]
        assert [e.posted_block for e in rows.list_epochs()] == [10, None]
        assert rows.get_fact("ended") == 0
    with database.write() as rows:
        rows.set_fact("ended", 10)
        rows.forget_blocks_above(10)
        assert rows.get_fact("ended") == 10
