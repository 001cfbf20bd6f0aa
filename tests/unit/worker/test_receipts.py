import dataclasses
import hashlib

import pytest

from covey.devnet import deploy
from covey.engines.hf.engine import HuggingFaceEngine
from covey.errors import ProtocolError, TransientError
from covey.protocol import eip712, messages
from covey.protocol.api.worker import SubmissionResponse
from covey.protocol.eip712 import Domain
from covey.protocol.messages import Countersignature
from covey.protocol.submission_file.rows import count_units
from tests.fakes.pool import make_address
from tests.fakes.tools import Worker, make_model_params
from worker import receipts

pytestmark = pytest.mark.unit
LEDGER = Domain(chain_id=31337, contract=make_address("ledger"))
OPERATOR = deploy.derive_wallet("test", "operator")


@pytest.fixture(scope="module")
def worker(engine: HuggingFaceEngine) -> Worker:
    return Worker(deploy.derive_wallet("test", "node"), make_model_params(), engine)


def test_build_receipt__file__is_named_by_its_hash_and_counted(worker: Worker):
    work = worker.work()
    receipt = work.receipt
    assert receipt.work_key == "0x" + hashlib.sha256(work.file).hexdigest()
    assert receipt.units == sum(len(row.tokens) for row in work.rollouts) == count_units(work.rollouts)
    assert (receipt.task, receipt.lease, receipt.groups, receipt.policy_version) == (7, 9, 2, 0)
    assert receipt.deadline == 1000 + 86_400


# -- the operator's promise


def answer_to(receipt: messages.Receipt, *, signer=OPERATOR, **changes: object) -> SubmissionResponse:
    values = {"receipt_hash": eip712.compute_struct_hash(receipt), "signed_at": 1000, "due_by": 1064}
    promise = Countersignature(**(values | changes))
    return SubmissionResponse(**eip712.to_dict(promise), signature=eip712.sign(promise, LEDGER, signer))


def require(answer: SubmissionResponse, receipt: messages.Receipt, *, first: int = 950, last: int = 1100):
    return receipts.require_promise(
        answer,
        receipt,
        domain=LEDGER,
        signer=OPERATOR.address,
        first_time=first,
        now=last,
        draw_seconds=50,
        epoch_length=2,
    )


@pytest.fixture(scope="module")
def receipt(worker: Worker) -> messages.Receipt:
    return worker.work().receipt


def test_require_promise__lawful__is_returned(receipt: messages.Receipt):
    promise = require(answer_to(receipt), receipt, first=1049, last=1000 - receipts.MAX_AHEAD_SECONDS)
    assert (promise.signed_at, promise.due_by) == (1000, 1064)
    assert promise.receipt_hash == eip712.compute_struct_hash(receipt)


def code_of(answer: SubmissionResponse, receipt: messages.Receipt, **times: int) -> str:
    with pytest.raises(ProtocolError) as caught:
        require(answer, receipt, **times)
    return caught.value.code


def test_require_promise__for_another_receipt__is_refused(receipt: messages.Receipt):
    other = dataclasses.replace(receipt, units=1)
    assert code_of(answer_to(other), receipt) == "bad_countersignature"


@pytest.mark.parametrize(("first", "last"), [(1050, 1100), (950, 999 - receipts.MAX_AHEAD_SECONDS)])
def test_require_promise__back_dated_or_ahead__is_refused(receipt: messages.Receipt, first: int, last: int):
    """The date decides which later block draws the audit, so the coordinator must not be free to choose it."""
    assert code_of(answer_to(receipt), receipt, first=first, last=last) == "bad_countersignature"


@pytest.mark.parametrize(
    ("due_by", "is_fair"), [(0, False), (999, False), (1000, True), (1128, True), (1129, False), (1 << 62, False)]
)
def test_require_promise__due_in_the_past_or_too_late__is_refused(
    receipt: messages.Receipt, due_by: int, is_fair: bool
):
    """The ledger keeps 256 epochs of 2 s, and a promise may take a quarter of that time."""
    answer = answer_to(receipt, due_by=due_by)
    if is_fair:
        assert require(answer, receipt).due_by == due_by
    else:
        assert code_of(answer, receipt) == "bad_countersignature"


def test_require_promise__signed_by_another_key__is_refused(receipt: messages.Receipt):
    stranger = deploy.derive_wallet("test", "stranger")
    assert code_of(answer_to(receipt, signer=stranger), receipt) == "bad_countersignature"
    altered = answer_to(receipt).model_copy(update={"due_by": 99})
    assert code_of(altered, receipt) == "bad_countersignature"
    broken = answer_to(receipt).model_copy(update={"signature": "0x" + "00" * 65})
    assert code_of(broken, receipt) == "bad_signature"


@pytest.mark.parametrize(("code", "is_final"), [("lease_expired", True), ("bad_link", False), ("slow_down", False)])
def test_require_final__by_code(code: str, is_final: bool):
    error = ProtocolError(code, "because")
    if is_final:
        receipts.require_final(error)
    else:
        with pytest.raises(TransientError):
            receipts.require_final(error)
