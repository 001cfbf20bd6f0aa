"""A signed receipt survives every crash once it is stored, and is sent unchanged."""

import dataclasses
import json
from pathlib import Path

import pytest

from covey.errors import ProtocolError
from covey.protocol.api.worker import SubmissionResponse
from covey.protocol.eip712 import to_dict
from covey.protocol.messages import Receipt
from tests.fakes.pool import SIGNATURE, make_address, make_hash
from worker.submission_store import SignedSubmission, SubmissionStore

pytestmark = pytest.mark.unit
ANSWER = SubmissionResponse(receipt_hash=make_hash("r"), signed_at=5, due_by=64, signature=SIGNATURE)
REFUSAL = ProtocolError("stale", "too old")


def make_submission(task: int, lease: int, file: bytes = b"rows") -> SignedSubmission:
    receipt = Receipt(
        pool=1, task=task, lease=lease, node=make_address("a"), contributor=make_address("b"), policy_version=0,
        work_key=make_hash(f"{task}"), groups=2, units=9, deadline=2**62,
    )  # fmt: skip
    return SignedSubmission(receipt=receipt, signature=SIGNATURE, file=file, first_time=41)


def test_add__submission__is_read_unchanged_by_another_process(tmp_path: Path):
    submission = make_submission(7, 9, bytes(range(256)))
    SubmissionStore(tmp_path).add(submission)
    again = SubmissionStore(tmp_path)
    assert list(again.list()) == [submission]


def test_list__several__are_ordered_by_lease_not_by_name(tmp_path: Path):
    store = SubmissionStore(tmp_path)
    for task, lease in ((3, 10), (20, 9), (1, 111)):
        store.add(make_submission(task, lease))
    assert [submission.receipt.lease for submission in store.list()] == [9, 10, 111]


def test_list__crash_before_the_receipt_was_stored__lists_nothing(tmp_path: Path):
    """The file is written first: without its receipt nobody can have seen a signature."""
    store = SubmissionStore(tmp_path)
    (tmp_path / "7-9.parquet").write_bytes(b"rows")
    (tmp_path / ".7-9.json.abcd1234").write_bytes(b'{"receipt"')
    assert list(store.list()) == []
    store.add(make_submission(7, 9, b"other rows"))
    assert [submission.file for submission in store.list()] == [b"other rows"]


def test_add__again__lists_it_once(tmp_path: Path):
    store = SubmissionStore(tmp_path)
    store.add(make_submission(7, 9))
    store.add(make_submission(7, 9))
    assert len(list(store.list())) == 1


def test_close__countersigned__keeps_receipt_and_promise_as_evidence(tmp_path: Path):
    store = SubmissionStore(tmp_path)
    submission = make_submission(7, 9)
    store.add(submission)
    store.close(submission, ANSWER)
    assert list(store.list()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["refused", "sent"]
    assert store.list_refused() == []
    kept = json.loads((tmp_path / "sent" / "7-9.json").read_bytes())
    assert kept == {
        "receipt": to_dict(submission.receipt),
        "signature": SIGNATURE,
        "countersignature": ANSWER.model_dump(),
    }


def test_has_signed__only_pending_sent_or_refused_leases(tmp_path: Path):
    store = SubmissionStore(tmp_path)
    for task, answer in ((7, ANSWER), (8, REFUSAL)):
        store.add(make_submission(task, task + 2))
        store.close(make_submission(task, task + 2), answer)
    store.add(make_submission(9, 11))
    again = SubmissionStore(tmp_path)
    known = {(task, lease) for task in range(5, 13) for lease in range(8, 13) if again.has_signed(task, lease)}
    assert {(7, 9), (8, 10), (9, 11)} <= known
    assert not known & {(7, 11), (9, 9), (10, 9), (11, 12)}, "another slot is another receipt"


def test_close__refused__leaves_the_receipt_and_the_reason(tmp_path: Path):
    store = SubmissionStore(tmp_path)
    submission = make_submission(7, 9)
    store.add(submission)
    store.close(submission, REFUSAL)
    assert list(tmp_path.rglob("*.*")) == []
    kept = json.loads((tmp_path / "refused" / "9").read_text())
    assert kept["receipt"] == to_dict(submission.receipt)
    assert kept["refusal"] == {"code": "stale", "message": "too old"}


def test_refused_in_a_row__countersigned_in_between__begins_again(tmp_path: Path):
    store, counts = SubmissionStore(tmp_path), []
    for lease, answer in enumerate((REFUSAL, REFUSAL, ANSWER, REFUSAL)):
        store.close(make_submission(1, lease), answer)
        counts.append(store.refused_in_a_row)
    assert counts == [1, 2, 0, 1]
    store.close(make_submission(1, 9), REFUSAL, is_late=True)
    assert store.refused_in_a_row == 1, "the lease may have ended during an outage"


def test_close__one_of_two__leaves_the_other(tmp_path: Path):
    store = SubmissionStore(tmp_path)
    first, second = make_submission(7, 9), make_submission(7, 10)
    for submission in (first, second):
        store.add(submission)
    store.close(first, ANSWER)
    assert list(store.list()) == [second]
    assert dataclasses.replace(second, first_time=0) != second


def test_list_refused__many__keeps_the_newest_across_processes(tmp_path: Path):
    store = SubmissionStore(tmp_path)
    for lease in range(300):
        store.close(make_submission(1, lease), REFUSAL)
    assert SubmissionStore(tmp_path).list_refused() == list(range(44, 300))
    assert store.list_refused() == list(range(44, 300))


def test_list_refused__draft_of_a_process_that_was_killed__is_skipped(tmp_path: Path):
    store = SubmissionStore(tmp_path)
    (tmp_path / "refused" / "9").touch()
    (tmp_path / "refused" / ".10.abcd").touch()
    assert store.list_refused() == [9]
