"""Jobs on real rows: an epoch is closed, its file stored, its intent written; a refused one is tried again."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator import jobs
from coordinator.db.database_outbox import DatabaseOutbox
from coordinator.queue.routes import ROUTES, JobQueue
from covey.chain.json_rpc import Call
from covey.chain.outbox import IntentState, Place
from covey.errors import TransientError
from covey.object_store import LinkSigner, ObjectStore
from covey.protocol.epochs import EpochHeader
from tests.fakes.pool import POOL, FakePool, make_address, make_hash, make_ledger

pytestmark = pytest.mark.unit


class FakeLedger:
    """Says what `EpochLedger.post` was asked for in the call's data."""

    def post(self, header: EpochHeader) -> Call:
        return Call(to=make_address("ledger"), data=json.dumps(asdict(header)).encode(), label="EpochLedger.post")


class Triggers(list[str]):
    """Notes which jobs were asked for."""

    def trigger(self, job: str, **_: int) -> None:
        self.append(job)


@pytest.fixture
def ctx(pool: FakePool, tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(
        database=pool.database,
        params=pool.params,
        ledger=make_ledger(),
        client=SimpleNamespace(get_block=lambda _: SimpleNamespace(timestamp=int(pool.now))),
        store=ObjectStore.open(f"file://{tmp_path}", LinkSigner(secret=b"s", base_url="http://x")),
        contracts=SimpleNamespace(ledger=FakeLedger()),
        config=SimpleNamespace(pool=POOL, finality="latest"),
        chain=SimpleNamespace(
            validators=pool.validators, active_validators=frozenset(pool.validators), report_outdated=lambda: None
        ),
        canary_secret=b"s",
        jobs=Triggers(),
        clock=lambda: pool.now,
    )


def settle(ctx: SimpleNamespace) -> None:
    """Run the jobs that settle, and those that they ask for."""
    jobs.settle_epoch(ctx)
    if "close_epoch" in ctx.jobs:
        jobs.close_epochs(ctx)
    if "settle_epoch" in ctx.jobs:
        jobs.settle_epoch(ctx)
    ctx.jobs.clear()


def close_first_epoch(ctx: SimpleNamespace, pool: FakePool) -> None:
    do_first_work(pool)
    settle(ctx)


def do_first_work(pool: FakePool) -> None:
    """One submission is accepted, and it is time for an epoch."""
    pool.register("a")
    pool.publish(0)
    pool.accept(pool.work("a"))
    pool.now += pool.params.epoch_seconds


def end_pool(pool: FakePool, *, closes_at: float) -> None:
    with pool.database.write() as rows:
        rows.set_fact("ended", 7)
        rows.set_fact("closes_at", int(closes_at))


def test_settle_epoch__due__stores_the_leaves_under_their_hash_and_writes_one_intent(
    ctx: SimpleNamespace, pool: FakePool
):
    close_first_epoch(ctx, pool)
    settle(ctx)
    (entry,) = DatabaseOutbox(pool.database).list_pending()
    values = json.loads(entry.intent.call.data)
    assert (entry.intent.key, values["pool"], values["leaf_count"]) == (f"epoch/{POOL}/0/0", POOL, 1)
    assert (values["epoch"], values["previous_hash"]) == (0, "0x" + "00" * 32)
    data = ctx.store.get(f"epochs/{POOL}/{values['data_hash']}.json", max_bytes=10_000)
    (leaf,) = json.loads(data)["leaves"]
    assert leaf["units"] == values["units"] > 0


def test_settle_epoch__refused_by_the_ledger__is_tried_again_ever_more_rarely(ctx: SimpleNamespace, pool: FakePool):
    close_first_epoch(ctx, pool)
    store = DatabaseOutbox(pool.database)
    seen = []
    for wait in (9.0, 2.0, 8.0, 2.0, 1000.0):
        for entry in store.list_pending():
            seen.append(entry.intent.key)
            store.record_reverted(entry.intent.key, "Insolvent", None)
        pool.now += wait
        settle(ctx)
    # closed at t: the second try comes 10 s after t, the third 20 s
    assert seen == [f"epoch/{POOL}/0/{n}" for n in (0, 1, 2)]
    assert [entry.intent.key for entry in store.list_pending()] == [f"epoch/{POOL}/0/3"]


def test_settle_epoch__refused_for_hours__is_tried_again_every_five_minutes(ctx: SimpleNamespace, pool: FakePool):
    close_first_epoch(ctx, pool)
    store, closed_at, tried = DatabaseOutbox(pool.database), pool.now, [0.0]
    while pool.now < closed_at + 1500:
        for entry in store.list_pending():
            store.record_reverted(entry.intent.key, "Insolvent", None)
        pool.now += 10
        settle(ctx)
        if store.list_pending():
            tried.append(pool.now - closed_at)
    waits = [after - before for before, after in pairwise(tried)]
    assert waits[:7] == [10, 10, 20, 40, 80, 160, 300]
    assert set(waits[7:]) == {300}


def test_settle_epoch__mined__is_not_sent_again(ctx: SimpleNamespace, pool: FakePool):
    close_first_epoch(ctx, pool)
    store = DatabaseOutbox(pool.database)
    (entry,) = store.list_pending()
    place = Place(block_number=5, block_hash=make_hash("5"), transaction_hash=make_hash("t"))
    store.record_mined(entry.intent.key, place)
    pool.now += 10_000
    settle(ctx)
    assert store.find(entry.intent.key).state is IntentState.MINED
    assert store.list_pending() == []


def test_settle_epoch__pool_is_closed__posts_nothing_and_says_once_what_stays_unpaid(
    ctx: SimpleNamespace, pool: FakePool
):
    """One submission is in an epoch that was never posted, one in none."""
    close_first_epoch(ctx, pool)
    store = DatabaseOutbox(pool.database)
    (entry,) = store.list_pending()
    store.record_reverted(entry.intent.key, "InsufficientEscrow(1, 3, 0)", None)
    pool.accept(pool.work("a"))
    end_pool(pool, closes_at=pool.now)
    with capture_logs() as logs:
        settle(ctx)
        settle(ctx)
    assert store.list_pending() == []
    errors = [(log["event"], log["submissions"]) for log in logs if log["log_level"] == "error"]
    assert errors == [("the pool is closed: no epoch can pay for these submissions any more", 2)]


def test_settle_epoch__second_before_the_pool_closes__still_posts(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    end_pool(pool, closes_at=pool.now + 1)
    settle(ctx)
    assert len(DatabaseOutbox(pool.database).list_pending()) == 1


def test_settle_epoch__own_clock_is_ahead_of_the_chain__pool_is_not_closed_yet(ctx: SimpleNamespace, pool: FakePool):
    """The ledger goes by the chain's time. What was closed by a wrong clock would stay closed, and unpaid."""
    do_first_work(pool)
    end_pool(pool, closes_at=pool.now + 60)
    clock, ctx.clock = ctx.clock, lambda: pool.now + 120
    settle(ctx)
    ctx.clock = clock
    settle(ctx)
    assert len(DatabaseOutbox(pool.database).list_pending()) == 1


@pytest.mark.parametrize(("newest", "expected"), [(1000, 1000), (971, 971), (970, 970), (969, 1000), (2000, 2000)])
def test_get_chain_time__newest_block__unless_the_chain_waits_for_something_to_do(newest: int, expected: int):
    assert jobs.get_chain_time(SimpleNamespace(clock=lambda: 1000.0), newest) == expected


# -- the chain's node


def fail(*_: object) -> Any:
    raise TransientError("chain_unreachable", "gone")


def test_settle_epoch__nothing_is_due__does_not_ask_the_chain(ctx: SimpleNamespace, pool: FakePool):
    ctx.client.get_block = fail
    jobs.settle_epoch(ctx)
    do_first_work(pool)
    pool.now -= 1
    jobs.settle_epoch(ctx)
    pool.now += 1
    with pytest.raises(TransientError):
        jobs.settle_epoch(ctx)


def test_settle_epoch__closed_epoch__is_posted_while_the_chains_node_is_gone(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    jobs.settle_epoch(ctx)
    ctx.client.get_block = fail
    jobs.close_epochs(ctx, epoch=0)
    jobs.settle_epoch(ctx)
    assert [entry.intent.key for entry in DatabaseOutbox(pool.database).list_pending()] == [f"epoch/{POOL}/0/0"]


def test_close_epochs__of_another_number_or_twice__changes_nothing(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    jobs.settle_epoch(ctx)
    jobs.close_epochs(ctx, epoch=1)
    assert ctx.jobs == ["close_epoch"]
    jobs.close_epochs(ctx, epoch=0)
    jobs.close_epochs(ctx, epoch=0)
    assert ctx.jobs == ["close_epoch", "settle_epoch"]
    jobs.settle_epoch(ctx)
    assert len(DatabaseOutbox(pool.database).list_pending()) == 1


def test_settle_epoch__epoch_that_is_closing__is_asked_for_once(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    for _ in range(3):
        jobs.settle_epoch(ctx)
    assert ctx.jobs == ["close_epoch"], "beat asks for what has been lost"


def test_close_epochs__another_process_closes__leaves_it_alone(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    jobs.settle_epoch(ctx)
    other = pool.database.open_leadership("closing")
    assert other.is_held()
    jobs.close_epochs(ctx)
    with pool.database.read() as rows:
        assert [row.leaf_count for row in rows.list_unposted()] == [0]
    other.close()
    jobs.close_epochs(ctx)
    with pool.database.read() as rows:
        assert [row.leaf_count for row in rows.list_unposted()] == [1]


def test_close_epochs__pool_has_closed_meanwhile__nothing_is_posted(ctx: SimpleNamespace, pool: FakePool):
    """Jobs were down at the end of the pool, and afterwards the job that closes runs first."""
    do_first_work(pool)
    jobs.settle_epoch(ctx)
    end_pool(pool, closes_at=pool.now)
    jobs.close_epochs(ctx)
    jobs.settle_epoch(ctx)
    assert DatabaseOutbox(pool.database).list_pending() == []


def test_close_epochs__it_is_known_that_the_pool_is_closed__closes_none(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    jobs.settle_epoch(ctx)
    end_pool(pool, closes_at=pool.now)
    jobs.settle_epoch(ctx)
    jobs.close_epochs(ctx)
    with pool.database.read() as rows:
        assert [row.leaf_count for row in rows.list_unposted()] == [0]


def test_assign_and_expire__chain_of_the_context_is_missing__work(ctx: SimpleNamespace, pool: FakePool):
    """The jobs of the queue "now" have nothing to do with the chain."""
    del ctx.client, ctx.chain, ctx.contracts
    pool.register("a")
    pool.publish(0)
    pool.wait("a")
    jobs.assign_tasks(ctx)
    assert pool.collect("a") is not None
    pool.now += 31
    jobs.expire_leases(ctx)
    assert ctx.jobs == ["assign_tasks"]
    assert {name for name, route in ROUTES.items() if route.queue is JobQueue.NOW} == {"assign_tasks", "expire_leases"}


def test_dispatch_validation__chains_node_is_gone__judges_what_is_drawn(ctx: SimpleNamespace, pool: FakePool):
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    with pool.database.write() as rows:
        rows.get_submission(receipt_hash).draw, rows.get_submission(receipt_hash).draw_block = make_hash("block"), 1
        rows.get_submission(receipt_hash).next_check_at = 0.0
    ctx.client.get_block = fail
    jobs.dispatch_validation(ctx)
    assert len(pool.submission(receipt_hash).turns) == 1, "a turn is open"
    pool.now += 1
    other = pool.work("a")
    with pool.database.write() as rows:
        rows.get_submission(other).next_check_at = 0.0
    jobs.dispatch_validation(ctx)
    assert pool.submission(other).draw is None, "it is left to the job that draws"
    with pytest.raises(TransientError):
        jobs.draw_submissions(ctx)
