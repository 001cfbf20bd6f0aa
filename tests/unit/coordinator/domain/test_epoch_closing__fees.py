"""Validators are paid with the contributors: once for each verdict that agrees, by the epoch that holds the work."""

import json

import pytest

from coordinator.db.models import TurnRow
from coordinator.domain import restoring, settlement
from covey.protocol.verdict import Decision, Reason
from covey.protocol.verdict_fees import VerdictFees
from tests.fakes.epochs import Closed, close_epoch, mark_settled
from tests.fakes.pool import SIGNATURE, FakePool, make_address, make_ledger

pytestmark = pytest.mark.unit
ACCEPT, REJECT = Decision.ACCEPT, Decision.REJECT
FEES = VerdictFees(fee=7, limit=5)
LEDGER = make_ledger(fees=FEES)
OWNER = make_address("a's owner")


def close(pool: FakePool) -> tuple[Closed, dict[str, int], dict[str, int]]:
    """Close an epoch. Return it with its rewards and the paid verdicts of its file."""
    closed = close_epoch(pool, LEDGER)
    with pool.database.write() as rows:
        rows.get_epoch(closed.epoch.number).posted_block = 1
    content = json.loads(closed.data)
    rewards = {account: int(amount) for account, amount in content["rewards"].items()}
    assert closed.epoch.verdicts == sum(content.get("verdicts", {}).values())
    return closed, rewards, content.get("verdicts", {})


def test_build_epoch__agreeing_verdicts__are_paid_and_add_up_over_epochs(earning: FakePool):
    first, second, third = earning.validators
    earning.decide(earning.work("a"))  # The first two decide.
    outvoted = earning.work("cheat")
    earning.decide(outvoted, REJECT)
    with earning.database.write() as rows:  # The third one was outvoted, and its verdict is revealed.
        add_verdict(rows, earning, outvoted, ACCEPT)
    _, rewards, verdicts = close(earning)
    assert verdicts == {first: 2, second: 2}
    assert rewards == {OWNER: 60, first: 14, second: 14}

    late = earning.work("a")
    earning.decide(late)
    with earning.database.write() as rows:
        add_verdict(rows, earning, late, ACCEPT)
    _, rewards, verdicts = close(earning)
    assert verdicts == {first: 1, second: 1, third: 1}
    assert rewards == {OWNER: 120, first: 21, second: 21, third: 7}


def add_verdict(rows, pool: FakePool, receipt_hash: str, decision: Decision) -> None:
    """Add the revealed verdict of the third validator."""
    row = rows.get_submission(receipt_hash)
    verdict = pool.build_verdict(2, receipt_hash, decision, severity=0)
    turn = TurnRow(receipt_hash=receipt_hash, validator=pool.validators[2], full=bool(row.audited), opened_at=pool.now)
    turn.verdict, turn.signature, turn.lapsed = verdict, SIGNATURE, False
    row.turns.append(turn)


def test_build_epoch__verdict_that_comes_after_its_epoch__changes_no_later_one(earning: FakePool):
    receipt_hash = earning.work("a")
    earning.decide(receipt_hash)
    _, before, _ = close(earning)
    with earning.database.write() as rows:
        add_verdict(rows, earning, receipt_hash, ACCEPT)
    earning.decide(earning.work("a"), REJECT, reason=Reason.REWARD)
    _, after, verdicts = close(earning)
    assert after == before | dict.fromkeys(earning.validators[:2], 14)
    assert set(verdicts) == set(earning.validators[:2])


def test_build_epoch__more_verdicts_than_the_limit__pays_the_first_leaves(earning: FakePool):
    for _ in range(3):
        earning.decide(earning.work("a"))
    closed, rewards, verdicts = close(earning)
    assert closed.epoch.verdicts == sum(verdicts.values()) == 5
    assert sum(rewards.values()) == 3 * 60 + 5 * 7


def test_build_epoch__disabled_epoch__its_verdicts_are_paid_once_by_a_later_one(earning: FakePool):
    earning.decide(earning.work("a"))
    close(earning)
    earning.decide(earning.work("b"))
    closed, false, _ = close(earning)
    with earning.database.write() as rows:
        settlement.record_disabled(rows, number=closed.epoch.number)
    _, again, verdicts = close(earning)
    assert verdicts == dict.fromkeys(earning.validators[:2], 1)
    assert again == false


def test_build_epoch__no_verdict_agrees__file_has_no_field_for_them(earning: FakePool):
    receipt_hash = earning.work("a")
    for _ in range(2):
        earning.decide(receipt_hash, Decision.UNKNOWN)
    assert earning.submission(receipt_hash).decision is Decision.UNKNOWN
    closed, rewards, verdicts = close(earning)
    assert (rewards, verdicts, closed.epoch.verdicts) == ({}, {}, 0)


def test_import_epoch__lost_epoch_with_fees__is_known_and_paid_on(earning: FakePool):
    earning.decide(earning.work("a"))
    closed, rewards, _ = close(earning)
    header = settlement.build_header(closed.epoch, LEDGER.pool)
    with earning.database.write() as rows:  # As in a backup from before the epoch.
        rows.release_from_epoch(0)
        rows.clear_rewards(0)
        rows.delete_epoch(0)
    with earning.database.write() as rows:
        assert not settlement.is_known(rows, header)
        restoring.import_epoch(rows, header, closed.data, now=earning.now)
        assert settlement.is_known(rows, header)
        rows.get_epoch(0).posted_block = 1
    mark_settled(earning)
    earning.decide(earning.work("a"))
    assert close(earning)[1] == {account: 2 * amount for account, amount in rewards.items()}
