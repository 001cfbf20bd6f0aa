"""The database: one writer at a time, all or nothing, and what a reorganisation takes back."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import alembic.command
import alembic.config
import pytest
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError

import coordinator
from coordinator.db.database import Database
from coordinator.db.database_outbox import DatabaseOutbox
from coordinator.db.models import Base, CaseRow, ChallengeRow, EpochRow, JudgementRow
from covey.chain.json_rpc import Call
from covey.chain.outbox import Intent, IntentState, Place
from covey.errors import TransientError
from covey.protocol.running_sums import STATISTICS, ItemSum
from covey.protocol.status import CaseState, SubmissionState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.databases import open_schema
from tests.fakes.pool import FakePool, make_address, make_hash, make_params

pytestmark = pytest.mark.unit
ITEMS = {"exponent": 4, "mantissa": 4}
"""Numbers of windows of a submission of four rows. Its other statistics have one item per token."""
MIGRATE = """
import sys
from coordinator.db.database import Database
print("ready", flush=True)
sys.stdin.readline()
Database(sys.argv[1]).migrate()
"""


def build_config(database: Database) -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(coordinator.__file__).parent / "db" / "migrations"))
    config.attributes["engine"] = database._engine
    return config


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


def test_migrate__again__changes_nothing(database: Database):
    with database.write() as rows:
        rows.set_fact("lease", 5)
    database.migrate()
    with database.read() as rows:
        assert rows.get_fact("lease") == 5


def test_migrate__epoch_of_the_first_tables__is_kept_there_and_back(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path / 'old.sqlite3'}")
    config = build_config(database)
    alembic.command.upgrade(config, "0001")
    columns = "number, work_root, reward_root, data_hash, leaf_count, units, closed_at, disabled"
    with database.write() as rows:
        rows.session.execute(text(f"INSERT INTO epochs ({columns}) VALUES (0, 'w', 'r', 'd', 1, 2, 3.0, false)"))
    for _ in range(2):
        database.migrate()
        with database.read() as rows:
            (epoch,) = rows.list_epochs()
        assert (epoch.data_hash, epoch.previous_hash, epoch.header_hash) == ("d", "0x" + "00" * 32, None)
        alembic.command.downgrade(config, "0001")
    found = inspect(database._engine)
    assert {"id", "receipt_hash"} <= {column["name"] for column in found.get_columns("cases")}
    assert "previous_hash" not in {column["name"] for column in found.get_columns("epochs")}
    database.close()


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


def test_models__tables__are_those_of_the_migrations(database: Database):
    """What the code believes and what `migrate` made: the same tables and columns."""
    found = inspect(database._engine)
    for table in Base.metadata.sorted_tables:
        columns = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
        assert columns == {column.name: column.nullable for column in table.columns}, table.name
        unique = {tuple(u["column_names"]) for u in found.get_unique_constraints(table.name)}
        wanted = {tuple(c.columns.keys()) for c in table.constraints if type(c).__name__ == "UniqueConstraint"}
        assert wanted <= unique, table.name


def test_migrate__work_from_before_the_online_filter__counts_whole(database: Database):
    """Accepted work only; what is void or undecided has no live groups."""
    pool = FakePool(database, make_params(online_filter=True, groups_per_step=8))
    pool.register("a")
    pool.publish(0)
    pool.told = {0: 1, 1: 1}
    accepted, void, undecided = pool.work("a"), pool.work("a"), pool.work("a")
    pool.accept(accepted)
    pool.decide(void, Decision.REJECT, reason=Reason.REWARD)
    made = (accepted, void, undecided)
    assert [pool.submission(each).live_groups for each in made] == [1, 0, 0]
    try:
        alembic.command.downgrade(build_config(database), "0003")
        for table in ("submissions", "judgements"):
            assert "live_groups" not in {column["name"] for column in inspect(database._engine).get_columns(table)}
    finally:
        database.migrate()
    assert [pool.submission(each).live_groups for each in made] == [2, 0, 0]
    assert [(j.live_groups, j.verdict is not None) for j in pool.submission(accepted).judgements] == [(None, True)] * 2


def test_migrate__rows_that_others_point_to__are_kept_there_and_back(database: Database):
    """Tables are copied and dropped on the way; after it a reference must lead somewhere again."""
    pool = FakePool(database)
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.accept(receipt_hash)
    verdicts = [j.verdict for j in pool.submission(receipt_hash).judgements]
    try:
        alembic.command.downgrade(build_config(database), "0001")
    finally:
        database.migrate()
    row = pool.submission(receipt_hash)
    assert (row.state, row.units, [j.verdict for j in row.judgements]) == (SubmissionState.ACCEPTED, 20, verdicts)
    with pytest.raises(IntegrityError), database.write() as rows:
        rows.add(JudgementRow(receipt_hash=make_hash("nobody's")))


def test_migrate__strikes_and_removed_nodes_of_before__are_kept_there_and_back(database: Database):
    """Strikes of the nodes of one contributor are added up, and a removed node is suspended for nothing."""
    pool = FakePool(database)
    pool.register("a", "b", owner="owner")
    pool.register("c")
    columns = "SELECT address, strikes, suspended FROM nodes ORDER BY strikes"
    try:
        alembic.command.downgrade(build_config(database), "0004")
        with database.write() as rows:
            for name, strikes, suspended in (("a", 2, ""), ("b", 3, "removed"), ("c", 0, "case")):
                values = {"node": make_address(name), "strikes": strikes, "suspended": suspended}
                change = "UPDATE nodes SET strikes = :strikes, suspended = :suspended WHERE address = :node"
                rows.session.execute(text(change), values)
        database.migrate()
        assert [pool.strikes(name) for name in ("a", "b", "c")] == [5, 5, 0]
        found = [(pool.node(name).suspended, pool.node(name).removed) for name in ("a", "b", "c")]
        assert found == [("", False), ("", True), ("case", False)]
        alembic.command.downgrade(build_config(database), "0004")
        with database.read() as rows:
            suspended = {row[0]: row[2] for row in rows.session.execute(text(columns))}
        assert [suspended[make_address(name)] for name in ("a", "b", "c")] == ["", "removed", "case"]
    finally:
        database.migrate()


def test_migrate__challenge_and_intents_of_before__are_kept_there_and_back(database: Database):
    """What is mined is final, for its block is not known; what was challenged is an open challenge."""
    pool, store = FakePool(database), DatabaseOutbox(database)
    pool.register("a")
    pool.publish(0)
    challenged, other = pool.work("a"), pool.work("a")
    place = Place(block_number=9, block_hash=make_hash("9"), transaction_hash=make_hash("t"))
    with database.write() as rows:
        rows.add(ChallengeRow(receipt_hash=challenged, block_number=20, tries=0))
        rows.add(ChallengeRow(receipt_hash=other, block_number=20, decided_block=21, tries=0))
    for key in ("mined", "waiting"):
        store.put(Intent(key=key, call=Call(to=make_address("c"), data=b"", label="Thing.do")))
    store.record_mined("mined", place)
    try:
        alembic.command.downgrade(build_config(database), "0004")
        assert "challenges" not in inspect(database._engine).get_table_names()
    finally:
        database.migrate()
    with database.read() as rows:
        assert [c.block_number for c in (rows.get_challenge(challenged), rows.get_challenge(other)) if c] == [0]
    assert store.find("mined").state is IntentState.MINED
    assert store.list_provisional() == []
    assert [entry.intent.key for entry in store.list_pending()] == ["waiting"]


def test_migrate__running_sums__are_dropped_and_begin_at_zero(database: Database):
    pool = FakePool(database, make_params(verification={"audit_rate": 1.0, "draw_seconds": 1}))
    pool.register("a")
    pool.publish(0)
    sums = {name: ItemSum(total=1e-5, items=ITEMS.get(name, 20)) for name in STATISTICS}
    pool.stated = {0: sums, 1: sums}
    receipt_hash = pool.work("a")
    pool.accept(receipt_hash)

    def read() -> tuple[int | None, list[bool]]:
        with database.read() as rows:
            sums = rows.get_running_sums(make_address("a"))
        return sums and sums.submissions, [turn.sums is None for turn in pool.submission(receipt_hash).judgements]

    assert read() == (1, [False, False])
    try:
        alembic.command.downgrade(build_config(database), "0016")
        assert "running_sums" not in inspect(database._engine).get_table_names()
        assert "sums" not in {column["name"] for column in inspect(database._engine).get_columns("judgements")}
    finally:
        database.migrate()
    assert read() == (None, [True, True])


STARTING = 3
"""Processes of a coordinator that start together: the API, the jobs, and one that was started twice."""


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_migrate__processes_that_start_at_once__all_find_the_tables(tmp_path: Path, backend: str):
    with ExitStack() as stack:
        file = tmp_path / "new.sqlite3"
        url = f"sqlite:///{file}" if backend == "sqlite" else stack.enter_context(open_schema())
        starting = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", MIGRATE, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(STARTING)
        ]
        for process in starting:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in starting:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.wait(60) for process in starting] == [0] * STARTING


def test_migrate__decisions_and_leases_of_before__are_kept_there_and_back(database: Database):
    """A decision follows from the reason; the deadline of a lease ended it, or before that the time to collect it."""
    pool = FakePool(database, make_params(max_staleness=2))
    pool.register("a", "b", "c")
    pool.publish(0)
    accepted, rejected, open_still = (pool.work(name) for name in "abc")
    pool.decide(accepted)
    pool.reject(rejected)
    offered, collected = pool.tasks()[-2:]
    columns = "SELECT collected, deadline FROM tasks WHERE id = :task"
    try:
        alembic.command.downgrade(build_config(database), "0007")
        with database.write() as rows:
            for task, is_collected in ((offered, False), (collected, True)):
                values = {"task": task.id, "deadline": 1234.5, "is_collected": is_collected}
                change = "UPDATE tasks SET deadline = :deadline, collected = :is_collected WHERE id = :task"
                rows.session.execute(text(change), values)
        database.migrate()
        decisions = [pool.submission(each).decision for each in (accepted, rejected, open_still)]
        assert decisions == [Decision.ACCEPT, Decision.REJECT, None]
        rows = {task.id: task for task in pool.tasks()}
        assert (rows[offered.id].expires_at, rows[offered.id].ends_at) == (1234.5, None)
        assert (rows[collected.id].expires_at, rows[collected.id].ends_at) == (1234.5, 1234.5)
        alembic.command.downgrade(build_config(database), "0007")
        with database.read() as rows:
            found = [rows.session.execute(text(columns), {"task": task.id}).one() for task in (offered, collected)]
        assert [(bool(is_collected), deadline) for is_collected, deadline in found] == [(False, 1234.5), (True, 1234.5)]
    finally:
        database.migrate()


@pytest.mark.parametrize(
    ("state", "reason", "decision"),
    [
        (SubmissionState.SETTLED, Reason.NONE, Decision.ACCEPT),
        (SubmissionState.SETTLED, Reason.PROOF, Decision.REJECT),
        (SubmissionState.VOID, Reason.LATE, Decision.REJECT),
        (SubmissionState.VOID, Reason.UNDECIDED, Decision.UNKNOWN),
        (SubmissionState.VOID, Reason.CANARY, Decision.UNKNOWN),
    ],
)
def test_migrate__decided_submission_of_before__has_the_decision_of_its_state_and_reason(
    database: Database, state: SubmissionState, reason: Reason, decision: Decision
):
    pool = FakePool(database, make_params(max_staleness=2))
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    change = "UPDATE submissions SET state = :state, reason = :reason WHERE receipt_hash = :receipt_hash"
    try:
        alembic.command.downgrade(build_config(database), "0007")
        with database.write() as rows:
            values = {"state": state.name, "reason": int(reason), "receipt_hash": receipt_hash}
            rows.session.execute(text(change), values)
        database.migrate()
        assert pool.submission(receipt_hash).decision is decision
    finally:
        database.migrate()
