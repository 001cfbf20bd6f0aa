"""An epoch closes in steps that each write little, and after a crash between any two of them the next try ends it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator import jobs
from coordinator.db.repository import Repository
from coordinator.domain import epoch_closing, settlement
from covey.errors import TransientError
from covey.object_store import LinkSigner, ObjectStore
from covey.protocol.prices import ScheduledPrice
from covey.protocol.status import SubmissionState
from tests.fakes.pool import POOL, FakePool, make_address, make_hash, make_ledger
from tests.fakes.triggers import Triggers

pytestmark = pytest.mark.unit
LEDGER = make_ledger(epoch_units=60)


@pytest.fixture
def ctx(earning: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Three decided submissions, of which one transaction writes two at most."""
    monkeypatch.setattr(epoch_closing, "SLICE", 2)
    for units in (20, 25, 15):
        earning.decide(earning.work("a", units=units))
    return SimpleNamespace(
        database=earning.database,
        ledger=LEDGER,
        store=ObjectStore.open(f"file://{tmp_path}", LinkSigner(secret=b"s", base_url="http://x")),
        config=SimpleNamespace(pool=POOL),
        contracts=SimpleNamespace(pools=SimpleNamespace(get_prices=lambda pool: LEDGER.prices)),
        jobs=Triggers(),
    )


def begin(pool: FakePool) -> int:
    with pool.database.write() as rows:
        number = epoch_closing.begin_epoch(rows, now=pool.now)
        assert number is not None
        return number


def read_epoch(pool: FakePool) -> tuple[int, int, int]:
    """Number, leaves and units of the last epoch, which is closed."""
    with pool.database.read() as rows:
        epoch = rows.get_last_epoch()
        assert not epoch_closing.is_closing(epoch)
        assert rows.list_rewards(epoch.number) == {make_address("a's owner"): 3 * epoch.units}
        return epoch.number, epoch.leaf_count, epoch.units


def test_close_epoch__more_leaves_than_a_slice__all_are_in_it(ctx: SimpleNamespace, earning: FakePool):
    jobs.close_epoch(ctx, epoch=begin(earning))
    assert read_epoch(earning) == (0, 3, 60)


@pytest.mark.parametrize("crash", ["put_into_epoch", "add_rewards"])
def test_close_epoch__crash_in_any_transaction__the_next_try_ends_it(
    ctx: SimpleNamespace, earning: FakePool, monkeypatch: pytest.MonkeyPatch, crash: str
):
    number, calls, method = begin(earning), list[None](), getattr(Repository, crash)

    def fail(*arguments: object, **named: object) -> object:
        calls.append(None)
        if crash != "put_into_epoch" or len(calls) == 2:  # The first slice is committed.
            raise KeyboardInterrupt
        return method(*arguments, **named)

    with monkeypatch.context() as crashing:
        crashing.setattr(Repository, crash, fail)
        with pytest.raises(KeyboardInterrupt):
            jobs.close_epoch(ctx, epoch=number)
    earning.decide(earning.work("b", units=1))  # It comes too late for what is full.
    jobs.close_epoch(ctx, epoch=number)
    assert read_epoch(earning) == (0, 3, 60)


def test_is_due__an_epoch_is_closing__waits_for_it(ctx: SimpleNamespace, earning: FakePool):
    def is_due() -> bool:
        with earning.database.read() as rows:
            return settlement.is_due(rows, earning.params, LEDGER, now=earning.now, chain_time=10**6)

    earning.now += earning.params.epoch_seconds
    assert is_due()
    begin(earning)
    assert not is_due()
    with earning.database.write() as rows:
        assert epoch_closing.begin_epoch(rows, now=earning.now) is None, "another process was faster"


def test_record_closed__epoch_disabled_meanwhile__is_computed_again(ctx: SimpleNamespace, earning: FakePool):
    """What everybody has earned no longer includes the work of the disabled epoch."""
    jobs.close_epoch(ctx, epoch=begin(earning))
    with earning.database.write() as rows:
        rows.get_epoch(0).posted_block = 1
    earning.decide(earning.work("a", units=7))
    number = begin(earning)
    assert jobs.fill_epoch(ctx, number)
    with earning.database.read() as rows:
        closed = epoch_closing.build_epoch(rows, LEDGER, number)
    assert closed.rewards == {make_address("a's owner"): 3 * 67}
    with earning.database.write() as rows:
        settlement.record_disabled(rows, number=0)
    with earning.database.write() as rows:
        assert not epoch_closing.record_closed(rows, closed)
    jobs.close_epoch(ctx, epoch=number)
    assert read_epoch(earning)[2] <= LEDGER.epoch_units


def test_build_epoch__price_that_does_not_divide__rounds_each_contributor_and_epoch_down(earning: FakePool):
    """31 units earn 31 x 0.15 = 4.65, so 4. In either later epoch 6 units earn 0.9, so 0, and not 43 x 0.15 = 6.45."""
    ledger = make_ledger(epoch_units=60, prices=(ScheduledPrice(reward_per_million=150_000, start=0),))
    rewards = []
    for number, units in enumerate((31, 6, 6)):
        earning.decide(earning.work("a", units=units))
        assert begin(earning) == number
        with earning.database.write() as rows:
            epoch_closing.put_leaves(rows, ledger, number, [each for each, _ in rows.list_unsettled()])
            leaves = epoch_closing.list_leaves(rows, number)
            assert epoch_closing.record_filled(rows, number, leaves, epoch_closing.compute_work_root(leaves))
            closed = epoch_closing.build_epoch(rows, ledger, number)
            assert epoch_closing.record_closed(rows, closed)
            rows.get_epoch(number).posted_block = 1
        rewards += closed.rewards.values()
    assert rewards == [4, 4, 4]


def test_build_epoch__price_changed__is_that_of_the_time_when_the_previous_epoch_was_posted(earning: FakePool):
    """The windows last 20 s. Epoch 0 is final at 120, so it was posted at 100, when the raise of time 100 held."""
    prices = tuple(ScheduledPrice(reward_per_million=p * 10**6, start=t) for p, t in ((3, 0), (5, 100), (7, 101)))
    ledger, found = make_ledger(epoch_units=60, prices=prices), []
    for number, final_at in enumerate((120, 121, 200)):
        earning.decide(earning.work("a", units=10))
        assert begin(earning) == number
        with earning.database.write() as rows:
            epoch_closing.put_leaves(rows, ledger, number, [each for each, _ in rows.list_unsettled()])
            leaves = epoch_closing.list_leaves(rows, number)
            assert epoch_closing.record_filled(rows, number, leaves, epoch_closing.compute_work_root(leaves))
            if number == 1:
                rows.get_epoch(0).final_at = None
                with pytest.raises(TransientError, match="no price before epoch 0 is posted"):
                    epoch_closing.build_epoch(rows, ledger, number)
                rows.get_epoch(0).final_at = 120
            closed = epoch_closing.build_epoch(rows, ledger, number)
            assert epoch_closing.record_closed(rows, closed)
            rows.get_epoch(number).posted_block, rows.get_epoch(number).final_at = 1, final_at
        found += closed.rewards.values()
    assert found == [30, 30 + 50, 30 + 50 + 70]


def test_close_epoch__two_processes__one_closes_it_and_the_other_changes_nothing(
    ctx: SimpleNamespace, earning: FakePool
):
    number = begin(earning)
    with earning.database.read() as rows:
        chosen = [each for each, _ in rows.list_unsettled()]
    with earning.database.write() as rows:
        epoch_closing.put_leaves(rows, LEDGER, number, chosen[:2])
    with earning.database.read() as rows:
        outdated = epoch_closing.list_leaves(rows, number)
    with earning.database.write() as rows:
        epoch_closing.put_leaves(rows, LEDGER, number, chosen[2:])
    with earning.database.write() as rows:
        assert not epoch_closing.record_filled(rows, number, outdated, make_hash("root")), (
            "the other process has added a submission"
        )
    jobs.close_epoch(ctx, epoch=number)
    before = read_epoch(earning)
    with earning.database.write() as rows:
        assert not epoch_closing.put_leaves(rows, LEDGER, number, chosen)
        assert epoch_closing.record_filled(rows, number, outdated, make_hash("root")), (
            "it is filled, with the leaves of the other process"
        )
    jobs.close_epoch(ctx, epoch=number)
    assert read_epoch(earning) == before


def test_close_epoch__two_at_the_same_time__share_the_work_and_the_second_waits_for_the_first(
    ctx: SimpleNamespace, earning: FakePool
):
    """Work is decided while the first epoch is computed, and another process closes the next one."""
    first = begin(earning)
    assert jobs.fill_epoch(ctx, first)
    earning.decide(earning.work("b", units=7))
    second = begin(earning)
    with pytest.raises(TransientError, match="epoch_before"):
        jobs.close_epoch(ctx, epoch=second)
    with earning.database.read() as rows:
        assert [row.leaf_count for row in rows.list_unposted()] == [3, 1], "it is filled meanwhile"
        assert not settlement.may_begin(rows)
    jobs.close_epoch(ctx, epoch=first)
    jobs.close_epoch(ctx, epoch=second)
    with earning.database.read() as rows:
        assert rows.list_rewards(first) == {make_address("a's owner"): 3 * 60}
        assert rows.list_rewards(second) == {make_address("a's owner"): 3 * 60, make_address("b's owner"): 3 * 7}
        before, after = (settlement.build_header(row, LEDGER.pool) for row in rows.list_unposted())
    assert after.previous_hash == before.compute_hash()


def test_close_epoch__one_that_is_not_filled__lets_no_other_begin(ctx: SimpleNamespace, earning: FakePool):
    """Two that fill at once would split what one can hold."""
    begin(earning)
    earning.decide(earning.work("b", units=1))
    with earning.database.write() as rows:
        assert epoch_closing.begin_epoch(rows, now=earning.now) is None


def test_mark_settled__more_than_a_slice__marks_all(ctx: SimpleNamespace, earning: FakePool):
    jobs.close_epoch(ctx, epoch=begin(earning))
    with earning.database.write() as rows:
        rows.get_epoch(0).posted_block = 1
    jobs.mark_settled(ctx, epoch=0)
    assert set(earning.states().values()) == {"SETTLED"}


def test_put_leaves__taken_back_or_too_many_units_by_now__are_left_out(ctx: SimpleNamespace, earning: FakePool):
    """They were chosen before this transaction, and another process may have filled the epoch meanwhile."""
    number = begin(earning)
    with earning.database.read() as rows:
        chosen = [each for each, _ in rows.list_unsettled()]
    earning.decide(late := earning.work("b", units=21))
    with earning.database.write() as rows:
        rows.get_submission(chosen[0]).state = SubmissionState.SUBMITTED
    with earning.database.write() as rows:
        assert epoch_closing.put_leaves(rows, LEDGER, number, [*chosen, late])
    assert [earning.submission(each).epoch for each in (*chosen, late)] == [None, number, number, None]
