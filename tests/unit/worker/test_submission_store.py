"""A signed receipt survives every crash from the moment that it is kept, and goes out unchanged."""

import dataclasses
import json
from pathlib import Path

import pytest

from covey.protocol.api.worker import SubmissionAnswer
from covey.protocol.eip712 import to_dict
from covey.protocol.messages import Receipt
from tests.fakes.pool import SIGNATURE, make_address, make_hash
from worker.submission_store import SignedSubmission, SubmissionStore

pytestmark = pytest.mark.unit
ANSWER = SubmissionAnswer(receipt_hash=make_hash("r"), signed_at=5, latest_epoch=64, signature=SIGNATURE)


def make_parcel(task: int, lease: int, file: bytes = b"rows") -> SignedSubmission:
    receipt = Receipt(
        pool=1, task=task, lease=lease, node=make_address("a"), contributor=make_address("b"), policy_version=0,
        work_key=make_hash(f"{task}"), groups=2, units=9, deadline=2**62,
    )  # fmt: skip
    return SignedSubmission(receipt=receipt, signature=SIGNATURE, file=file, first_time=41, first_epochs=3)


def test_add__parcel__is_found_by_another_process_as_it_was(tmp_path: Path):
    parcel = make_parcel(7, 9, bytes(range(256)))
    SubmissionStore(tmp_path).add(parcel)
    again = SubmissionStore(tmp_path)
    assert list(again.list()) == [parcel]


def test_list__several__come_by_lease_not_by_name(tmp_path: Path):
    outgoing = SubmissionStore(tmp_path)
    for task, lease in ((3, 10), (20, 9), (1, 111)):
        outgoing.add(make_parcel(task, lease))
    assert [parcel.receipt.lease for parcel in outgoing.list()] == [9, 10, 111]


def test_list__crash_before_the_receipt_was_kept__counts_for_nothing(tmp_path: Path):
    """The file comes first: without its receipt nothing was signed that anybody could have seen."""
    outgoing = SubmissionStore(tmp_path)
    (tmp_path / "7-9.parquet").write_bytes(b"rows")
    (tmp_path / ".7-9.json.abcd1234").write_bytes(b'{"receipt"')
    assert list(outgoing.list()) == []
    outgoing.add(make_parcel(7, 9, b"other rows"))
    assert [parcel.file for parcel in outgoing.list()] == [b"other rows"]


def test_add__again__is_the_same(tmp_path: Path):
    outgoing = SubmissionStore(tmp_path)
    outgoing.add(make_parcel(7, 9))
    outgoing.add(make_parcel(7, 9))
    assert len(list(outgoing.list())) == 1


def test_close__countersigned__keeps_receipt_and_promise_as_evidence(tmp_path: Path):
    outgoing = SubmissionStore(tmp_path)
    parcel = make_parcel(7, 9)
    outgoing.add(parcel)
    outgoing.close(parcel, ANSWER)
    assert list(outgoing.list()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["refused", "sent"]
    assert outgoing.list_refused() == []
    kept = json.loads((tmp_path / "sent" / "7-9.json").read_bytes())
    assert kept == {
        "receipt": to_dict(parcel.receipt),
        "signature": SIGNATURE,
        "countersignature": ANSWER.model_dump(),
    }


def test_has_signed__pending_sent_or_refused__is_known_and_nothing_else(tmp_path: Path):
    outgoing = SubmissionStore(tmp_path)
    for task, answer in ((7, ANSWER), (8, None)):
        outgoing.add(make_parcel(task, task + 2))
        outgoing.close(make_parcel(task, task + 2), answer)
    outgoing.add(make_parcel(9, 11))
    again = SubmissionStore(tmp_path)
    known = {(task, lease) for task in range(5, 13) for lease in range(8, 13) if again.has_signed(task, lease)}
    assert {(7, 9), (8, 10), (9, 11)} <= known
    assert not known & {(7, 11), (9, 9), (10, 9), (11, 12)}, "another slot is another receipt"


def test_close__refused__leaves_nothing(tmp_path: Path):
    outgoing = SubmissionStore(tmp_path)
    parcel = make_parcel(7, 9)
    outgoing.add(parcel)
    outgoing.close(parcel, None)
    outgoing.close(parcel, None)
    assert list(tmp_path.rglob("*.*")) == []


def test_close__one_of_two__leaves_the_other(tmp_path: Path):
    outgoing = SubmissionStore(tmp_path)
    first, second = make_parcel(7, 9), make_parcel(7, 10)
    for parcel in (first, second):
        outgoing.add(parcel)
    outgoing.close(first, ANSWER)
    assert list(outgoing.list()) == [second]
    assert dataclasses.replace(second, first_time=0) != second


def test_list_refused__many__keeps_the_newest_across_processes(tmp_path: Path):
    outgoing = SubmissionStore(tmp_path)
    for lease in range(300):
        outgoing.close(make_parcel(1, lease), None)
    assert SubmissionStore(tmp_path).list_refused() == list(range(44, 300))
    assert outgoing.list_refused() == list(range(44, 300))


def test_list_refused__draft_of_a_process_that_was_killed__is_none(tmp_path: Path):
    outgoing = SubmissionStore(tmp_path)
    (tmp_path / "refused" / "9").touch()
    (tmp_path / "refused" / ".10.abcd").touch()
    assert outgoing.list_refused() == [9]
