"""Sweeps ask for what is late, with its ids, and for nothing that is on its way."""

from types import SimpleNamespace

import pytest

from coordinator import jobs
from coordinator.domain import epoch_closing
from tests.fakes.pool import POOL, FakePool, make_hash, make_ledger, make_terms
from tests.fakes.triggers import Triggers

pytestmark = pytest.mark.unit


@pytest.fixture
def ctx(pool: FakePool) -> SimpleNamespace:
    pool.register("a")
    pool.publish(0)
    return SimpleNamespace(
        database=pool.database,
        params=pool.params,
        ledger=make_ledger(),
        terms=make_terms(unbond_window=3600),
        config=SimpleNamespace(pool=POOL, keep_files_days=None),
        jobs=Triggers(),
        clock=lambda: pool.now,
    )


def sweep(ctx: SimpleNamespace) -> list[str]:
    ctx.jobs.clear()
    jobs.sweep(ctx)
    return list(ctx.jobs)


def test_sweep__nothing_is_late__asks_for_nothing(ctx: SimpleNamespace):
    assert sweep(ctx) == []


def test_sweep__node_waits_and_a_task_is_pending__asks_for_assignment(ctx: SimpleNamespace, pool: FakePool):
    pool.wait("a")
    assert sweep(ctx) == ["assign_tasks"]
    pool.assign()
    assert pool.collect("a") is not None
    assert sweep(ctx) == []
    pool.now += 31
    assert sweep(ctx) == ["expire_leases"]


def test_sweep__undrawn_work__asks_for_a_draw_by_the_newest_block_of_the_follower(ctx: SimpleNamespace, pool: FakePool):
    receipt_hash = pool.work("a")
    pool.now = pool.submission(receipt_hash).next_check_at
    assert sweep(ctx) == [], "the follower has read no block"
    with pool.database.write() as rows:
        rows.replace_blocks([(number, make_hash(f"{number}")) for number in (7, 9)])
    assert sweep(ctx) == ["draw_submissions 9"]
    pool.now -= 0.1
    assert sweep(ctx) == [], "the block is still to come"


def test_sweep__verdict_whose_message_was_lost__is_decided_a_second_later(ctx: SimpleNamespace, pool: FakePool):
    receipt_hash = pool.work("a")
    pool.dispatch()
    with pool.database.write() as rows:
        rows.get_submission(receipt_hash).next_check_at = pool.now
    assert sweep(ctx) == []
    pool.now += 1
    assert sweep(ctx) == ["dispatch_validation"]
    assert ctx.jobs.list_receipts() == [receipt_hash]


def test_sweep__epoch__is_asked_for_until_its_work_is_settled(ctx: SimpleNamespace, pool: FakePool):
    pool.accept(pool.work("a"))
    pool.now += pool.params.epoch_seconds
    assert sweep(ctx) == ["begin_epoch"]
    with pool.database.write() as rows:
        epoch_closing.begin_epoch(rows, now=pool.now)
    assert sweep(ctx) == []
    pool.now += 10
    assert sweep(ctx) == ["close_epoch 0"]
    with pool.database.write() as rows:
        epoch_closing.put_leaves(rows, ctx.ledger, 0, [each for each, _ in rows.list_unsettled()])
        leaves = epoch_closing.list_leaves(rows, 0)
        epoch_closing.record_filled(rows, 0, leaves, epoch_closing.compute_work_root(leaves))
        epoch_closing.record_closed(rows, epoch_closing.build_epoch(rows, ctx.ledger, 0))
    assert sweep(ctx) == ["post_epoch 0"]
    with pool.database.write() as rows:
        rows.get_epoch(0).posted_block = 9
    assert sweep(ctx) == ["mark_settled 0"]
    with pool.database.write() as rows:
        rows.get_epoch(0).settled = True
    assert sweep(ctx) == []


def test_sweep_settled__hard_rejection_without_a_case__asks_for_signatures(ctx: SimpleNamespace, pool: FakePool):
    jobs.sweep_settled(ctx)
    assert ctx.jobs == []
    pool.reject(pool.work("a"))
    jobs.sweep_settled(ctx)
    assert ctx.jobs == ["seek_signatures"]
