"""Receipt files: those that a worker keeps are read, and everything else is refused in one line."""

import dataclasses
import json
from pathlib import Path

import pytest

from covey.console.receipt_files import MAX_FILE_BYTES, read_receipt_file
from covey.errors import OperatorError
from covey.protocol.api.common import ReceiptBody
from covey.protocol.api.worker import SubmissionResponse
from covey.protocol.eip712 import compute_struct_hash
from covey.protocol.messages import Countersignature, Receipt
from tests.fakes.pool import SIGNATURE, make_address, make_hash
from worker.submission_store import SignedSubmission, SubmissionStore

pytestmark = pytest.mark.unit
RECEIPT = Receipt(
    pool=1, task=7, lease=9, node=make_address("a"), contributor=make_address("b"), policy_version=0,
    work_key=make_hash("7"), groups=2, units=9, deadline=2**62,
)  # fmt: skip
ANSWER = SubmissionResponse(receipt_hash=compute_struct_hash(RECEIPT), signed_at=5, due_by=64, signature=SIGNATURE)


def test_read_receipt_file__sent_or_pending__has_the_receipt_and_any_promise(tmp_path: Path):
    store = SubmissionStore(tmp_path)
    submission = SignedSubmission(receipt=RECEIPT, signature=SIGNATURE, file=b"rows", first_time=41)
    store.add(submission)
    waiting = read_receipt_file(tmp_path / "7-9.json")
    assert (waiting.receipt, waiting.signature, waiting.promise) == (RECEIPT, SIGNATURE, None)
    store.close(submission, ANSWER)
    sent = read_receipt_file(tmp_path / "sent" / "7-9.json")
    assert sent.promise == Countersignature(receipt_hash=sent.receipt_hash, signed_at=5, due_by=64)
    assert (sent.receipt, sent.promise_signature) == (RECEIPT, SIGNATURE)


def build(promise: SubmissionResponse | None = None, **changes: object) -> bytes:
    body = ReceiptBody.of(dataclasses.replace(RECEIPT)).model_dump(mode="json") | changes
    values = {"receipt": body, "signature": SIGNATURE}
    return json.dumps(values | ({} if promise is None else {"countersignature": promise.model_dump()})).encode()


def test_read_receipt_file__receipt_and_signature_alone__are_enough(tmp_path: Path):
    file = tmp_path / "x.json"
    file.write_bytes(build())
    assert read_receipt_file(file).receipt_hash == compute_struct_hash(RECEIPT)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"3",
        b"{}",
        b'{"receipt": 3, "signature": "0x"}',
        b'{"receipt": {}, "signature": "0x"}',
        b"[" * 60_000,
        b" " * MAX_FILE_BYTES + b"{}",
        build(task=-5),
        build(lease=2**256),
        build(policy_version=-1),
        build(pool=2**256),
        build(ANSWER.model_copy(update={"receipt_hash": make_hash("another")})),
    ],
)
def test_read_receipt_file__not_a_receipt__is_refused_with_the_file(tmp_path: Path, content: bytes):
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(OperatorError, match=r"bad_receipt_file: .*x\.json does not contain a signed receipt"):
        read_receipt_file(file)


def test_read_receipt_file__no_file__is_refused(tmp_path: Path):
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(OperatorError, match="bad_receipt_file"):
            read_receipt_file(path)
