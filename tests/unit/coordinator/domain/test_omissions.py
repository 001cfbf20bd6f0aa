"""Open challenges become intents: few trees, few and short transactions, and no challenge that is forgotten."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from coordinator import chain_events
from coordinator.db.database import Database
from coordinator.db.database_outbox import DatabaseOutbox
from coordinator.db.models import EpochRow, NodeRow, StepRow, SubmissionRow, TaskRow
from coordinator.db.omission_queries import ChallengeRow
from coordinator.domain import omissions, settlement
from coordinator.domain.omissions import MAX_TRIES, SLICE
from covey.chain.json_rpc import Call
from covey.chain.outbox import IntentState, Place
from covey.chain.structs import EpochRecord, Inclusion
from covey.protocol import merkle
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import PoolId
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Decision
from tests.fakes.pool import POOL, make_address, make_hash

pytestmark = pytest.mark.unit


class FakeLedger:
    """Keeps what `answerOmissions` was called with."""

    def __init__(self) -> None:
        self.called: list[tuple[EpochRecord, EpochHeader, list[Inclusion]]] = []

    def answer_omissions(self, record: EpochRecord, header: EpochHeader, inclusions: Sequence[Inclusion]) -> Call:
        self.called.append((record, header, list(inclusions)))
        data = repr((record, header, inclusions)).encode()
        return Call(to=make_address("ledger"), data=data, label="EpochLedger.answerOmissions")


@pytest.fixture
def ctx(database: Database) -> SimpleNamespace:
    ledger = SimpleNamespace(pool=PoolId(POOL))
    contracts = SimpleNamespace(ledger=FakeLedger())
    return SimpleNamespace(database=database, contracts=contracts, ledger=ledger, clock=lambda: 100.0)


def settle(database: Database, leaves: int, *, epoch: int = 0, posted: bool = True) -> list[str]:
    """An epoch of that many submissions; their receipts."""
    numbers = range(epoch * 10_000 + 1, epoch * 10_000 + 1 + leaves)
    with database.write() as rows:
        rows.session.merge(NodeRow(address=make_address("node"), contributor=make_address("owner")))
        rows.session.merge(StepRow(number=0))
        posting = {"header_hash": make_hash("header"), "final_at": 99, "reward": "1", "cumulative": "1"}
        rows.add(
            EpochRow(
                number=epoch, work_root=make_hash("w"), reward_root=make_hash("r"), data_hash=make_hash("d"),
                leaf_count=leaves, units=leaves, previous_hash=make_hash("p"), closed_at=0.0, disabled=False,
                posted_block=10 if posted else None, **(posting if posted else {}),
            )
        )  # fmt: skip
        rows.session.add_all(
            TaskRow(id=n, policy_version=0, groups=1, state=TaskState.SUBMITTED, node=make_address("node"), lease=n)
            for n in numbers
        )
        rows.session.flush()
        made = [
            SubmissionRow(
                receipt_hash=make_hash(f"receipt {n}"), task=n, lease=n, node=make_address("node"),
                contributor=make_address("owner"), policy_version=0, work_key=make_hash(f"work {n}"), groups=1,
                units=1, receipt_units=1, deadline=1, signature="0x", signed_at=1, due_by=epoch,
                countersignature="0x", state=SubmissionState.SETTLED, decision=Decision.ACCEPT, epoch=epoch,
            )
            for n in numbers
        ]  # fmt: skip
        rows.session.add_all(made)
        return [row.receipt_hash for row in made]


def challenge(database: Database, receipts: Sequence[str], *, block: int = 20) -> None:
    with database.write() as rows:
        for receipt in receipts:
            omissions.record_challenge(rows, receipt, block=block)


def list_keys(database: Database) -> list[str]:
    return [entry.intent.key for entry in DatabaseOutbox(database).list_pending()]


def find_challenge(database: Database, receipt: str) -> ChallengeRow | None:
    with database.read() as rows:
        return rows.get_challenge(receipt)


def test_answer_challenges__a_flood__takes_one_tree_and_short_transactions(
    ctx: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    trees, transactions, write = [], [], ctx.database.write

    class CountedTree(merkle.MerkleTree):
        def __init__(self, leaves: Sequence[bytes]) -> None:
            trees.append(len(leaves))
            super().__init__(leaves)

    def count_write():
        transactions.append(1)
        return write()

    receipts = settle(ctx.database, 1000)
    challenge(ctx.database, receipts[::3][:300])
    monkeypatch.setattr(merkle, "MerkleTree", CountedTree)
    monkeypatch.setattr(ctx.database, "write", count_write)
    chain_events.answer_challenges(ctx)
    assert trees == [1000]
    assert len(transactions) == len(list_keys(ctx.database)) == 300 / SLICE
    monkeypatch.undo()
    chain_events.answer_challenges(ctx)
    assert trees == [1000], "what has an answer is left alone"

    shown = [inclusion for _, _, inclusions in ctx.contracts.ledger.called for inclusion in inclusions]
    assert sorted(each.leaf.receipt_hash for each in shown) == sorted(receipts[::3][:300])
    with ctx.database.read() as rows:
        root = merkle.MerkleTree([omissions.build_work_leaf(row).compute_hash() for row in rows.list_settled(0)]).root
    assert all(merkle.is_in_tree(root, each.leaf.compute_hash(), each.proof) for each in shown)


def test_answer_challenges__several_epochs__each_has_its_transaction_and_an_unposted_one_waits(ctx: SimpleNamespace):
    receipts = [settle(ctx.database, 3, epoch=epoch, posted=epoch < 2) for epoch in range(3)]
    challenge(ctx.database, [receipt for some in receipts for receipt in some])
    chain_events.answer_challenges(ctx)
    called = ctx.contracts.ledger.called
    assert [(header.epoch, len(inclusions)) for _, header, inclusions in called] == [(0, 3), (1, 3)]
    with ctx.database.write() as rows:
        rows.get_epoch(2).posted_block = 30
    chain_events.answer_challenges(ctx)
    assert [(header.epoch, len(inclusions)) for _, header, inclusions in called[2:]] == [(2, 3)]


def test_answer_challenges__refused__is_built_again_a_few_times(ctx: SimpleNamespace):
    """With what the chain says then: an epoch that was posted again has another record."""
    receipts, store = settle(ctx.database, 2), DatabaseOutbox(ctx.database)
    challenge(ctx.database, receipts[:1])
    for tries in range(MAX_TRIES + 3):
        with ctx.database.write() as rows:
            rows.get_epoch(0).final_at = 100 + tries
        chain_events.answer_challenges(ctx)
        for key in list_keys(ctx.database):
            store.record_reverted(key, "UnknownEpoch(1, 0)", None)
    assert [record.final_at for record, _, _ in ctx.contracts.ledger.called] == [100 + n for n in range(MAX_TRIES)]
    assert find_challenge(ctx.database, receipts[0]).tries == MAX_TRIES


def test_answer_challenges__decided__is_left_alone(ctx: SimpleNamespace):
    (receipt,) = settle(ctx.database, 1)
    challenge(ctx.database, [receipt])
    with ctx.database.write() as rows:
        omissions.record_decision(rows, receipt, block=21)
    chain_events.answer_challenges(ctx)
    assert list_keys(ctx.database) == []


def test_reorganisation__challenge_comes_again__is_answered_again(ctx: SimpleNamespace):
    """Its first answer is refused, or skipped, where the challenge came later than it."""
    (receipt,) = settle(ctx.database, 1)
    store = DatabaseOutbox(ctx.database)
    challenge(ctx.database, [receipt], block=20)
    chain_events.answer_challenges(ctx)
    (first,) = list_keys(ctx.database)
    place = Place(block_number=21, block_hash=make_hash("21"), transaction_hash=make_hash("t"))
    store.record_mined(first, place)
    with ctx.database.write() as rows:
        rows.forget_blocks_above(19)
    assert find_challenge(ctx.database, receipt) is None
    challenge(ctx.database, [receipt], block=22)
    chain_events.answer_challenges(ctx)
    assert len(list_keys(ctx.database)) == 1
    assert list_keys(ctx.database) != [first]
    assert store.find(first).state is IntentState.MINED


def test_reorganisation__fewer_come_again_in_the_same_block__they_are_answered(ctx: SimpleNamespace):
    """The answer differs from the one before, although its first challenge has the same receipt and block."""
    receipts = sorted(settle(ctx.database, 2))
    challenge(ctx.database, receipts, block=20)
    chain_events.answer_challenges(ctx)
    with ctx.database.write() as rows:
        rows.forget_blocks_above(19)
    challenge(ctx.database, receipts[:1], block=20)
    chain_events.answer_challenges(ctx)
    assert [len(inclusions) for _, _, inclusions in ctx.contracts.ledger.called] == [2, 1]
    assert len(list_keys(ctx.database)) == 2


def test_reorganisation__epoch_has_another_record__its_challenges_are_answered(ctx: SimpleNamespace):
    (receipt,) = settle(ctx.database, 1)
    challenge(ctx.database, [receipt], block=20)
    chain_events.answer_challenges(ctx)
    with ctx.database.write() as rows:
        rows.forget_blocks_above(19)
        rows.get_epoch(0).final_at = 111
    challenge(ctx.database, [receipt], block=20)
    chain_events.answer_challenges(ctx)
    assert [record.final_at for record, _, _ in ctx.contracts.ledger.called] == [99, 111]
    assert len(list_keys(ctx.database)) == 2


def test_record_challenge__again_after_its_epoch_was_disabled__is_answered_by_the_next_epoch(ctx: SimpleNamespace):
    (receipt,) = settle(ctx.database, 1)
    challenge(ctx.database, [receipt], block=20)
    chain_events.answer_challenges(ctx)
    with ctx.database.write() as rows:
        omissions.record_decision(rows, receipt, block=21)
        settlement.record_disabled(rows, number=0)
    settle(ctx.database, 1, epoch=1)
    with ctx.database.write() as rows:
        rows.get_submission(receipt).epoch = 1
    challenge(ctx.database, [receipt], block=40)
    chain_events.answer_challenges(ctx)
    assert [header.epoch for _, header, _ in ctx.contracts.ledger.called] == [0, 1]
    assert find_challenge(ctx.database, receipt).decided_block is None
    assert len(list_keys(ctx.database)) == 2


def test_reorganisation__block_that_decided_it__opens_it_again(ctx: SimpleNamespace):
    """Somebody else had answered, so no intent of ours is sent again."""
    (receipt,) = settle(ctx.database, 1)
    challenge(ctx.database, [receipt], block=20)
    with ctx.database.write() as rows:
        omissions.record_decision(rows, receipt, block=25)
    with ctx.database.write() as rows:
        rows.forget_blocks_above(24)
    assert find_challenge(ctx.database, receipt).decided_block is None
    chain_events.answer_challenges(ctx)
    assert len(list_keys(ctx.database)) == 1


def test_record_challenge__receipt_of_nobody_here__is_no_row(ctx: SimpleNamespace):
    challenge(ctx.database, [make_hash("another's")])
    assert find_challenge(ctx.database, make_hash("another's")) is None


def uphold(ctx: SimpleNamespace, receipt: str, *, block: int = 25, paid: int = 1) -> None:
    """Let the operator's bond pay for a receipt whose challenge nobody answered in time."""
    challenge(ctx.database, [receipt])
    with ctx.database.write() as rows:
        omissions.record_decision(rows, receipt, block=block, paid=paid)


def test_answer_challenges__upheld_and_in_an_epoch__is_deducted_once_when_the_epoch_is_final(ctx: SimpleNamespace):
    """The epoch is final at 99. The chain's clock may be a minute behind ours."""
    (receipt,) = settle(ctx.database, 1)
    uphold(ctx, receipt)
    ctx.clock = lambda: 159.0
    chain_events.answer_challenges(ctx)
    assert ctx.contracts.ledger.called == []
    ctx.clock = lambda: 159.5
    for _ in range(2):
        chain_events.answer_challenges(ctx)
    assert [[one.leaf.receipt_hash for one in shown] for _, _, shown in ctx.contracts.ledger.called] == [[receipt]]
    with ctx.database.write() as rows:
        omissions.record_netted(rows, receipt, block=30)
        rows.get_challenge(receipt).answer = None
    chain_events.answer_challenges(ctx)
    assert len(ctx.contracts.ledger.called) == 1
    with ctx.database.write() as rows:
        rows.forget_blocks_above(29)
    chain_events.answer_challenges(ctx)
    assert len(ctx.contracts.ledger.called) == 2, "a reorganization undid the deduction"


@pytest.mark.parametrize(("units", "paid"), [(0, 1), (5, 0), (0, 0)])
def test_answer_challenges__upheld_and_unpaid_by_either__is_shown_so_that_no_later_bond_pays(
    ctx: SimpleNamespace, units: int, paid: int
):
    (receipt,) = settle(ctx.database, 1)
    uphold(ctx, receipt, paid=paid)
    ctx.clock = lambda: 1000.0
    with ctx.database.write() as rows:
        rows.get_submission(receipt).units = units
    chain_events.answer_challenges(ctx)
    assert len(ctx.contracts.ledger.called) == 1


def test_list_unsettled__upheld_by_an_empty_bond__is_paid_by_an_epoch_until_a_later_bond_pays(ctx: SimpleNamespace):
    """Anybody may challenge and resolve while the bond is empty. That must not cost the contributor its pay."""
    (receipt,) = settle(ctx.database, 1)
    with ctx.database.write() as rows:
        rows.release_from_epoch(0)
    uphold(ctx, receipt, paid=0)
    with ctx.database.read() as rows:
        assert [found for found, _ in rows.list_unsettled()] == [receipt]
    with ctx.database.write() as rows:
        omissions.record_decision(rows, receipt, block=27, paid=3)
    with ctx.database.read() as rows:
        assert list(rows.list_unsettled()) == []
    with ctx.database.write() as rows:
        rows.forget_blocks_above(26)
        assert rows.get_challenge(receipt).decided_block == 25, "a reorganization took the later payment only"


def test_list_unsettled__upheld_before_its_epoch__is_in_none(ctx: SimpleNamespace):
    """The bond has paid for it. Once a reorganization undoes that, an epoch pays."""
    first, second = settle(ctx.database, 2)
    with ctx.database.write() as rows:
        rows.release_from_epoch(0)
    uphold(ctx, first)
    with ctx.database.read() as rows:
        assert [receipt for receipt, _ in rows.list_unsettled()] == [second]
        assert rows.sum_unsettled().submissions == 1
    with ctx.database.write() as rows:
        rows.forget_blocks_above(24)
    with ctx.database.read() as rows:
        assert [receipt for receipt, _ in rows.list_unsettled()] == [first, second]


def test_record_decision__bond_was_empty__the_next_epoch_pays(ctx: SimpleNamespace):
    (receipt,) = settle(ctx.database, 1)
    with ctx.database.write() as rows:
        rows.release_from_epoch(0)
    challenge(ctx.database, [receipt])
    with ctx.database.write() as rows:
        omissions.record_decision(rows, receipt, block=25)
    with ctx.database.read() as rows:
        assert [found for found, _ in rows.list_unsettled()] == [receipt]
