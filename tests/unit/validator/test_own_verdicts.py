"""Own verdicts outlive the process, the newest one on a receipt counts, and the oldest ones are deleted."""

from pathlib import Path

import pytest

from covey.protocol import eip712
from covey.protocol.messages import Receipt, Verdict
from covey.protocol.verdict import Decision, Reason, Severity
from tests.fakes.pool import make_address, make_hash
from validator import own_verdicts
from validator.own_verdicts import OwnVerdict, OwnVerdicts

pytestmark = pytest.mark.unit


def make_receipt(task: int) -> Receipt:
    return Receipt(
        pool=1, task=task, lease=9, node=make_address("n"), contributor=make_address("c"), policy_version=0,
        work_key=make_hash(f"w{task}"), groups=2, units=9, deadline=2**62,
    )  # fmt: skip


def judge(receipt: Receipt, outcome: Decision = Decision.ACCEPT, *, units: int = 9) -> Verdict:
    return Verdict(
        pool=1, receipt_hash=eip712.compute_struct_hash(receipt), work_key=receipt.work_key,
        validator=make_address("v"), outcome=int(outcome), reason=int(Reason.PROOF), severity=int(Severity.HARD),
        units=units, evidence_hash=make_hash("e"), deadline=2**62,
    )  # fmt: skip


def test_find__verdicts_of_an_earlier_process__newest_that_decides(tmp_path: Path):
    receipt, other = make_receipt(1), make_receipt(2)
    store = OwnVerdicts(tmp_path / "verdicts.sqlite3")
    store.add(judge(receipt), receipt)
    store.add(judge(receipt, Decision.REJECT, units=0), receipt)
    store.add(judge(receipt, Decision.UNKNOWN, units=0), receipt)
    store.close()
    receipt_hash, unknown = (eip712.compute_struct_hash(each) for each in (receipt, other))
    found = OwnVerdicts(tmp_path / "verdicts.sqlite3").find([receipt_hash, unknown])
    expected = OwnVerdict(
        receipt_hash, make_hash("w1"), make_address("n"), make_address("c"), int(Decision.REJECT), 2, 0
    )
    assert found == {receipt_hash: expected}


def test_add__more_than_are_kept__deletes_the_oldest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(own_verdicts, "MOST", 2)
    store, receipts = OwnVerdicts(":memory:"), [make_receipt(task) for task in range(4)]
    for receipt in receipts:
        store.add(judge(receipt), receipt)
    hashes = [eip712.compute_struct_hash(receipt) for receipt in receipts]
    assert list(store.find(hashes)) == hashes[2:]
