"""Files of submissions are removed once their epoch is final for long enough, and never while anything needs them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator import jobs
from coordinator.db.models import CaseRow
from coordinator.domain import retention
from covey.errors import ProtocolError
from covey.object_store import LinkSigner, ObjectStore
from covey.protocol.ids import Hash, LeaseId, TaskId
from covey.protocol.object_keys import build_submission_key
from covey.protocol.status import CaseState, StepState
from tests.fakes.pool import POOL, FakePool, make_ledger, make_terms
from tests.fakes.triggers import Triggers

pytestmark = pytest.mark.unit
DAY = 86_400


@pytest.fixture
def ctx(earning: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Epochs 0 and 1 with two and one submissions, whose files are in the store. Both are final at the time 1000."""
    monkeypatch.setattr(retention, "SLICE", 2)
    ctx = SimpleNamespace(
        database=earning.database,
        params=earning.params,
        terms=make_terms(unbond_window=3600),
        jobs=Triggers(),
        ledger=make_ledger(),
        client=SimpleNamespace(get_block=lambda _: SimpleNamespace(timestamp=int(earning.now))),
        store=ObjectStore.open(f"file://{tmp_path}", LinkSigner(secret=b"s", base_url="http://x")),
        config=SimpleNamespace(pool=POOL, keep_files_days=2.0),
        clock=lambda: earning.now,
    )
    for number, count in enumerate((2, 1)):
        works = [earning.work("a") for _ in range(count)]
        for work in works:
            earning.accept(work)
            ctx.store.put_named_by_content(get_key(earning, work), b"the rows")
        with earning.database.write() as rows:
            rows.require_epoch(number, closed_at=earning.now).final_at = 1000
            rows.put_into_epoch(number, works)
            for row in rows.list_settled(number):
                row.step = None
    monkeypatch.setattr(retention, "get_oldest_version", lambda *_: 1)  # All that work is too old for a batch.
    earning.now = 1000 + 2 * DAY
    return ctx


def get_key(pool: FakePool, receipt_hash: str) -> str:
    row = pool.submission(receipt_hash)
    return build_submission_key(POOL, TaskId(row.task), LeaseId(row.lease), Hash(row.work_key))


def count_files(ctx: SimpleNamespace, pool: FakePool) -> int:
    with pool.database.read() as rows:
        keys = [get_key(pool, row.receipt_hash) for number in (0, 1) for row in rows.list_settled(number)]
    found = 0
    for key in keys:
        try:
            ctx.store.get(key, max_bytes=100)
            found += 1
        except ProtocolError:
            pass
    return found


def prune(ctx: SimpleNamespace) -> None:
    """Run what beat asks for, once for each epoch."""
    for _ in range(2):
        jobs.sweep_settled(ctx)
        ctx.jobs.run_all(ctx)


def test_prune_epoch__epochs_are_final_for_long_enough__removes_all_in_slices(ctx: SimpleNamespace, earning: FakePool):
    jobs.prune_epoch(ctx, epoch=1)
    assert count_files(ctx, earning) == 3, "epochs are taken in their order"
    jobs.prune_epoch(ctx, epoch=0)
    assert count_files(ctx, earning) == 1
    prune(ctx)
    assert count_files(ctx, earning) == 0
    with earning.database.read() as rows:
        assert (rows.get_fact(retention.EPOCH), rows.get_fact(retention.TASK)) == (2, 0)


@pytest.mark.parametrize("days", [2.1, None])
def test_prune_epoch__too_early_or_never__removes_nothing(ctx: SimpleNamespace, earning: FakePool, days: float | None):
    ctx.config.keep_files_days = days
    prune(ctx)
    assert count_files(ctx, earning) == 3


def test_prune_epoch__no_day_is_asked_for__keeps_them_until_no_case_can_be_opened(
    ctx: SimpleNamespace, earning: FakePool
):
    """`SlashingCourt.propose` takes verdicts for `unbond_window` and a day, however final the epoch is."""
    ctx.config.keep_files_days = 0.0
    earning.now = 1000 + 3600 + DAY - 1
    prune(ctx)
    assert count_files(ctx, earning) == 3
    earning.now += 2
    prune(ctx)
    assert count_files(ctx, earning) == 0


def test_prune_epoch__batch_may_still_take_it__waits(
    ctx: SimpleNamespace, earning: FakePool, monkeypatch: pytest.MonkeyPatch
):
    """The trainer was down for days, and its next batch names work of epochs that are final long ago."""
    monkeypatch.setattr(retention, "get_oldest_version", lambda *_: 0)
    prune(ctx)
    assert count_files(ctx, earning) == 3


def test_prune_epoch__epoch_is_not_final__waits(ctx: SimpleNamespace, earning: FakePool):
    with earning.database.write() as rows:
        rows.require_epoch(0, closed_at=0.0).final_at = None
    prune(ctx)
    assert count_files(ctx, earning) == 3, "epoch 1 comes after epoch 0"


def test_prune_epoch__case_is_open__waits_until_it_is_closed(ctx: SimpleNamespace, earning: FakePool):
    with earning.database.write() as rows:
        (first, _) = rows.list_settled(0)
        case = CaseRow(receipt_hash=first.receipt_hash, state=CaseState.LOCKED, node=first.node)
        case.contributor, case.block_number, case.transaction_hash = first.contributor, 1, "0x"
        rows.add(case)
    prune(ctx)
    assert count_files(ctx, earning) == 3
    with earning.database.write() as rows:
        rows.get_case(first.receipt_hash).state = CaseState.SLASHED
    prune(ctx)
    assert count_files(ctx, earning) == 0


def test_prune_epoch__batch_was_not_taken__waits_for_the_trainer(ctx: SimpleNamespace, earning: FakePool):
    with earning.database.write() as rows:
        (first, _) = rows.list_settled(0)
        step = rows.list_steps()[0]
        first.step, step.state = step.number, StepState.READY
    prune(ctx)
    assert count_files(ctx, earning) == 3
    with earning.database.write() as rows:
        rows.get_step(step.number).state = StepState.TRAINED
    prune(ctx)
    assert count_files(ctx, earning) == 0


def test_prune_epoch__crash_before_it_is_noted__removes_the_same_again(
    ctx: SimpleNamespace, earning: FakePool, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as crashing:
        crashing.setattr(retention, "record_pruned", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            jobs.prune_epoch(ctx, epoch=0)
    prune(ctx)
    assert count_files(ctx, earning) == 0
