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
from coordinator.domain import attesting, settlement
from coordinator.queue.routes import ROUTES, JobQueue
from covey.chain.json_rpc import Call
from covey.chain.outbox import IntentState, Place
from covey.errors import TransientError
from covey.object_store import LinkSigner, ObjectStore
from covey.protocol.epoch_file import EpochFile
from covey.protocol.epochs import EpochHeader
from covey.protocol.verdict import Decision
from tests.fakes.pool import POOL, FakePool, make_address, make_hash, make_ledger
from tests.fakes.triggers import Triggers

pytestmark = pytest.mark.unit


class FakeLedger:
    """Says what `EpochLedger.post` was asked for in the call's data."""

    def post(self, header: EpochHeader, attestations: dict[str, str]) -> Call:
        return Call(to=make_address("ledger"), data=json.dumps(asdict(header)).encode(), label="EpochLedger.post")


@pytest.fixture
def ctx(pool: FakePool, tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(
        database=pool.database,
        params=pool.params,
        ledger=make_ledger(),
        client=SimpleNamespace(get_block=lambda _: SimpleNamespace(timestamp=int(pool.now))),
        store=ObjectStore.open(f"file://{tmp_path}", LinkSigner(secret=b"s", base_url="http://x")),
        contracts=SimpleNamespace(
            ledger=FakeLedger(), pools=SimpleNamespace(get_prices=lambda pool: make_ledger().prices)
        ),
        config=SimpleNamespace(pool=POOL, finality="latest"),
        chain=SimpleNamespace(
            validators=pool.validators, active_validators=frozenset(pool.validators), report_outdated=lambda: None
        ),
        canary_secret=b"s",
        jobs=Triggers(),
        clock=lambda: pool.now,
    )


def settle(ctx: SimpleNamespace) -> None:
    """Run what a sweep asks for, and what follows."""
    jobs.sweep(ctx)
    ctx.jobs.run_all(ctx)


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
    assert errors == [("the pool is closed, so no epoch can pay for these submissions", 2)]


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


def test_begin_epoch__nothing_is_due__does_not_ask_the_chain(ctx: SimpleNamespace, pool: FakePool):
    ctx.client.get_block = fail
    jobs.begin_epoch(ctx)
    do_first_work(pool)
    pool.now -= 1
    jobs.begin_epoch(ctx)
    pool.now += 1
    with pytest.raises(TransientError):
        jobs.begin_epoch(ctx)


def test_post_epoch__first_epoch__is_posted_while_the_chains_node_is_gone(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    jobs.begin_epoch(ctx)
    ctx.client.get_block = fail
    ctx.jobs.run_all(ctx)
    assert list_posted(pool) == [f"epoch/{POOL}/0/0"]


def test_post_epoch__header_quorum__waits_for_validators_with_its_file_in_the_store(
    ctx: SimpleNamespace, pool: FakePool
):
    ctx.ledger = make_ledger(header_quorum=2)
    close_first_epoch(ctx, pool)
    settle(ctx)
    assert list_posted(pool) == []
    with pool.database.read() as rows:
        key = f"epochs/{POOL}/{rows.get_epoch(0).data_hash}.json"
    data = ctx.store.get(key, max_bytes=10_000)
    _, header = EpochFile.from_unposted(data, chain=ctx.ledger.chain_id, ledger=ctx.ledger.address)
    with pool.database.read() as rows:
        assert header == settlement.build_header(rows.get_epoch(0), POOL), "validators sign what the coordinator closed"


def test_post_epoch__quorum_has_signed__is_posted_with_the_signatures_of_active_validators(
    ctx: SimpleNamespace, pool: FakePool
):
    ctx.ledger = make_ledger(header_quorum=2)
    given: list[dict[str, str]] = []
    post = ctx.contracts.ledger.post
    ctx.contracts.ledger.post = lambda header, signatures: given.append(signatures) or post(header, signatures)
    close_first_epoch(ctx, pool)
    first, second, stranger = *sorted(pool.validators)[:2], make_address("replaced")
    for validator in (stranger, first, second):
        settle(ctx)
        assert list_posted(pool) == []
        with pool.database.write() as rows:
            header = attesting.find_awaiting(rows, ctx.ledger)
            rows.put_attestation(0, header.compute_hash(), validator, f"by {validator}")
    settle(ctx)
    assert list_posted(pool) == [f"epoch/{POOL}/0/0"]
    assert given == [{first: f"by {first}", second: f"by {second}"}]


def test_post_epoch__signatures_are_late__names_once_who_has_signed_and_who_has_not(
    ctx: SimpleNamespace, pool: FakePool
):
    ctx.ledger = make_ledger(header_quorum=2)
    close_first_epoch(ctx, pool)
    with pool.database.write() as rows:
        header = attesting.find_awaiting(rows, ctx.ledger)
        rows.put_attestation(0, header.compute_hash(), pool.validators[0], "signed")
    with capture_logs() as logs:
        for _ in range(3):
            pool.now += 40
            settle(ctx)
    (warned,) = [log for log in logs if log["log_level"] == "warning"]
    assert (warned["epoch"], warned["required"]) == (0, 2)
    assert (warned["signed"], warned["missing"]) == ([pool.validators[0]], sorted(pool.validators[1:]))
    assert "epoch was not signed" in warned["advice"]


def test_post_epoch__too_few_validators_have_a_bond__is_said_though_all_of_them_have_signed(
    ctx: SimpleNamespace, pool: FakePool
):
    ctx.ledger = make_ledger(header_quorum=2)
    ctx.chain.active_validators = frozenset(pool.validators[:1])
    close_first_epoch(ctx, pool)
    with pool.database.write() as rows:
        header = attesting.find_awaiting(rows, ctx.ledger)
        rows.put_attestation(0, header.compute_hash(), pool.validators[0], "signed")
    with capture_logs() as logs:
        pool.now += 80
        settle(ctx)
    (warned,) = [log for log in logs if log["log_level"] == "warning"]
    assert (warned["signed"], warned["missing"], warned["required"]) == ([pool.validators[0]], [], 2)


def list_posted(pool: FakePool) -> list[str]:
    return [entry.intent.key for entry in DatabaseOutbox(pool.database).list_pending()]


def test_post_epoch__one_before_it_is_not_on_chain_or_too_new__waits(ctx: SimpleNamespace, pool: FakePool):
    ctx.ledger = make_ledger(epoch_length=100, windows=50)
    close_first_epoch(ctx, pool)
    pool.accept(pool.work("a"))
    pool.now += pool.params.epoch_seconds
    settle(ctx)
    jobs.post_epoch(ctx, epoch=1)
    assert list_posted(pool) == [f"epoch/{POOL}/0/0"], "epoch 1 is closed"
    with pool.database.write() as rows:
        first = rows.get_epoch(0)
        first.posted_block, first.final_at = 9, int(pool.now) + 50
    pool.now += 99
    jobs.post_epoch(ctx, epoch=1)
    assert list_posted(pool) == [f"epoch/{POOL}/0/0"], "the ledger takes an epoch each 100 s"
    pool.now += 1
    settle(ctx)
    assert list_posted(pool) == [f"epoch/{POOL}/0/0", f"epoch/{POOL}/1/0"]


def test_close_epoch__of_another_number_or_twice__changes_nothing(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    jobs.begin_epoch(ctx)
    jobs.close_epoch(ctx, epoch=1)
    assert ctx.jobs == ["close_epoch 0"]
    jobs.close_epoch(ctx, epoch=0)
    jobs.close_epoch(ctx, epoch=0)
    assert ctx.jobs == ["close_epoch 0", "post_epoch 0", "close_epoch 1"]
    jobs.post_epoch(ctx, epoch=0)
    jobs.post_epoch(ctx, epoch=0)
    assert list_posted(pool) == [f"epoch/{POOL}/0/0"]


def test_begin_epoch__epoch_that_is_closing__is_asked_for_once(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    for _ in range(3):
        jobs.begin_epoch(ctx)
    assert ctx.jobs == ["close_epoch 0"], "the sweep asks for what has been lost"


def test_close_epoch__another_process_closes_it__leaves_it_alone(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    jobs.begin_epoch(ctx)
    other = pool.database.open_leadership("closing-0")
    assert other.is_held()
    jobs.close_epoch(ctx, epoch=0)
    with pool.database.read() as rows:
        assert [row.leaf_count for row in rows.list_unposted()] == [0]
    other.close()
    jobs.close_epoch(ctx, epoch=0)
    with pool.database.read() as rows:
        assert [row.leaf_count for row in rows.list_unposted()] == [1]


def test_close_epoch__pool_has_closed_meanwhile__nothing_is_posted(ctx: SimpleNamespace, pool: FakePool):
    """Jobs were down at the end of the pool, and afterwards the job that closes runs first."""
    do_first_work(pool)
    jobs.begin_epoch(ctx)
    end_pool(pool, closes_at=pool.now)
    jobs.close_epoch(ctx, epoch=0)
    settle(ctx)
    assert list_posted(pool) == []


def test_close_epoch__it_is_known_that_the_pool_is_closed__closes_none(ctx: SimpleNamespace, pool: FakePool):
    do_first_work(pool)
    jobs.begin_epoch(ctx)
    end_pool(pool, closes_at=pool.now)
    jobs.begin_epoch(ctx)
    jobs.close_epoch(ctx, epoch=0)
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
    now = {name for name, route in ROUTES.items() if route.queue is JobQueue.NOW}
    assert now == {"assign_tasks", "expire_leases", "sweep", "sweep_settled"}


def see_block(ctx: SimpleNamespace, pool: FakePool, number: int, *, digest: str = "") -> None:
    """The node has a block each second, and the follower has stored this one, or another one of its number."""
    with pool.database.write() as rows:
        rows.replace_blocks([(number, digest or make_hash(f"{number}"))])
    ctx.client.get_block = lambda tag: SimpleNamespace(number=tag, hash=make_hash(f"{tag}"), timestamp=tag)


def work_undrawn(pool: FakePool) -> str:
    """Hand in work that is countersigned at second 50, which block 51 draws."""
    pool.register("a")
    pool.publish(0)
    return pool.work("a")


def test_draw_submissions__block_at_the_time_of_the_draw__draws_and_opens_a_turn(ctx: SimpleNamespace, pool: FakePool):
    receipt_hash = work_undrawn(pool)
    see_block(ctx, pool, 50)
    jobs.draw_submissions(ctx, block=50)
    assert pool.submission(receipt_hash).draw is None, "the block is a second too old"
    see_block(ctx, pool, 53)
    jobs.draw_submissions(ctx, block=53)
    row = pool.submission(receipt_hash)
    assert (row.draw, row.draw_block, len(row.turns)) == (make_hash("51"), 51, 2), "the first block at that time"


def test_draw_submissions__node_has_another_block_than_the_follower__is_tried_again(
    ctx: SimpleNamespace, pool: FakePool
):
    """A draw by a block that the follower does not know would outlast the block's removal."""
    receipt_hash = work_undrawn(pool)
    see_block(ctx, pool, 55, digest=make_hash("fork"))
    with pytest.raises(TransientError, match="chain_changes"):
        jobs.draw_submissions(ctx, block=55)
    jobs.draw_submissions(ctx, block=54)
    assert pool.submission(receipt_hash).draw is None, "the follower has not stored block 54"


def test_draw_submissions__reorganization_while_the_node_answers__draws_nothing(ctx: SimpleNamespace, pool: FakePool):
    """The follower takes back the draws above the block that stays, and knows nothing of one that comes later."""
    receipt_hash = work_undrawn(pool)
    see_block(ctx, pool, 55)
    get_block = ctx.client.get_block

    def get_and_reorganize(tag: int) -> Any:
        if tag < 55:
            with pool.database.write() as rows:
                rows.replace_blocks([(55, make_hash("fork"))])
        return get_block(tag)

    ctx.client.get_block = get_and_reorganize
    with pytest.raises(TransientError, match="chain_changes"):
        jobs.draw_submissions(ctx, block=55)
    assert pool.submission(receipt_hash).draw is None


def test_dispatch_validation__chains_node_is_gone__decides_what_is_drawn(ctx: SimpleNamespace, pool: FakePool):
    receipt_hash = work_undrawn(pool)
    see_block(ctx, pool, 51)
    jobs.draw_submissions(ctx, block=51)
    ctx.client.get_block = fail
    for validator in (0, 1):
        _, judgement = pool.claim(validator)
        pool.commit(validator, judgement, pool.build_verdict(validator, receipt_hash, Decision.ACCEPT))
    for judgement in list(pool.reveals):
        pool.reveal(judgement)
    jobs.dispatch_validation(ctx, receipts=[receipt_hash, make_hash("unknown")])
    assert pool.submission(receipt_hash).decided_at == pool.now
    assert ctx.jobs == ["assign_tasks"]
    with pytest.raises(TransientError):
        jobs.draw_submissions(ctx, block=51)
