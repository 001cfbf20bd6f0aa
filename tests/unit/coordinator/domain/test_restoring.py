"""After a restore from a backup no lease is given twice, and epochs that were posted meanwhile are known again."""

import json
from pathlib import Path

import pytest
from sqlalchemy import delete
from typer.testing import CliRunner

from coordinator.db.models import SubmissionRow, TaskRow, TurnRow
from coordinator.domain import restoring, settlement
from covey import cli
from covey.errors import ProtocolError
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Decision
from tests.fakes.epochs import Closed, close_epoch, mark_settled
from tests.fakes.pool import FakePool, make_address, make_ledger

pytestmark = pytest.mark.unit
LEDGER = make_ledger(epoch_units=1000)


def restore(pool: FakePool, *unknown: str) -> None:
    """Undo what came after the backup: the last epoch, and these submissions with their tasks."""
    with pool.database.write() as rows:
        number = rows.get_last_epoch_number()
        rows.release_from_epoch(number)
        rows.clear_rewards(number)
        rows.delete_epoch(number)
        for receipt_hash in unknown:
            task = rows.get_submission(receipt_hash).task
            for model, column in ((TurnRow, "receipt_hash"), (SubmissionRow, "receipt_hash")):
                rows.session.execute(delete(model).where(getattr(model, column) == receipt_hash))
            rows.session.execute(delete(TaskRow).where(TaskRow.id == task))


def bring_back(pool: FakePool, closed: Closed) -> None:
    header = settlement.build_header(closed.epoch, LEDGER.pool)
    with pool.database.write() as rows:
        assert not settlement.is_known(rows, header)
        restoring.import_epoch(rows, header, closed.data, now=pool.now)
        assert settlement.is_known(rows, header)
        rows.get_epoch(header.epoch).posted_block = 9
    mark_settled(pool)


def list_rewards(pool: FakePool, epoch: int) -> dict[str, int]:
    with pool.database.read() as rows:
        return rows.list_rewards(epoch)


def test_import_epoch__known_undecided_and_unknown_submissions__are_settled_and_paid_once(earning: FakePool):
    known, lost = earning.work("a", units=20), earning.work("b", units=7)
    rejected = earning.work("cheat")
    for receipt_hash, decision in ((known, Decision.ACCEPT), (lost, Decision.ACCEPT), (rejected, Decision.REJECT)):
        earning.decide(receipt_hash, decision)
    closed = close_epoch(earning, LEDGER)
    restore(earning, lost)
    with earning.database.write() as rows:  # The backup is older than its verdict.
        row = rows.get_submission(known)
        row.state, row.decision, row.decided_at = SubmissionState.SUBMITTED, None, None

    bring_back(earning, closed)

    assert set(earning.states().values()) == {SubmissionState.SETTLED}
    assert [earning.submission(each).units for each in (known, lost, rejected)] == [20, 7, 0]
    assert list_rewards(earning, 0) == {make_address("a's owner"): 60, make_address("b's owner"): 21}
    with earning.database.read() as rows:
        assert [row.receipt_hash for row in rows.list_hard_rejections()] == [rejected]
    earning.decide(earning.work("a", units=1))
    close_epoch(earning, LEDGER)
    assert list_rewards(earning, 1) == {make_address("a's owner"): 63, make_address("b's owner"): 21}


def test_import_epoch__another_epoch_is_closing_here__gives_its_submissions_back(earning: FakePool):
    first = earning.work("a")
    earning.decide(first)
    closed = close_epoch(earning, LEDGER)
    restore(earning)
    other = earning.work("b")
    earning.decide(other)
    close_epoch(earning, LEDGER)
    bring_back(earning, closed)
    assert [earning.submission(each).epoch for each in (first, other)] == [0, None]


def test_import_epoch__other_file__is_refused_and_changes_nothing(earning: FakePool):
    earning.decide(earning.work("a"))
    closed = close_epoch(earning, LEDGER)
    header = settlement.build_header(closed.epoch, LEDGER.pool)
    with pytest.raises(ProtocolError) as caught, earning.database.write() as rows:
        restoring.import_epoch(rows, header, closed.data + b" ", now=earning.now)
    assert caught.value.code == "bad_epoch_file"


def test_jump__leases_of_the_backup__end_and_later_numbers_are_free_of_those_in_between(earning: FakePool):
    before = earning.lease("a")
    with earning.database.write() as rows:
        next_lease = restoring.jump(rows, margin=1000)
    assert earning.tasks(TaskState.ASSIGNED, TaskState.PENDING) == []
    earning.now += 100
    with earning.database.write() as rows:
        rows.add_tasks(1, policy_version=0, groups=2)
    assert max(task.id for task in earning.tasks(TaskState.PENDING)) > before.id + 1000
    assert earning.lease("b").lease == next_lease == before.lease + 1001


def test_command__database_of_a_backup__says_the_next_lease(tmp_path: Path):
    values = {"home": tmp_path, "pool": 1, "deployment": tmp_path / "no.json", "key_file": tmp_path / "no.key"}
    sets = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    for run in (1, 2):
        result = CliRunner().invoke(cli.app, ["coordinator", "restored", "--json", *sets])
        assert result.exception is None, result.exception
        assert json.loads(result.stdout) == {"next_lease": run * restoring.MARGIN + 1}
