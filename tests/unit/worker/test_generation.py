"""What a worker decides: slots follow from the task, the receipt from the file, and a false promise is refused."""

import dataclasses
import hashlib

import pytest
from eth_utils.crypto import keccak

from covey.devnet import deploy
from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments import registry
from covey.environments.registry import DEMO
from covey.errors import ProtocolError, TransientError
from covey.protocol import eip712, messages
from covey.protocol.api.worker import SubmissionAnswer
from covey.protocol.eip712 import Domain
from covey.protocol.ids import PoolId, Step
from covey.protocol.messages import Countersignature
from covey.protocol.submission_file.rows import count_units
from tests.fakes.pool import make_address, make_hash
from tests.fakes.tools import MANIFEST, Worker, make_model_params, make_task
from worker import generation, receipts

pytestmark = pytest.mark.unit
LEDGER = Domain(chain_id=31337, contract=make_address("ledger"))
OPERATOR = deploy.derive_wallet("test", "operator")


@pytest.fixture(scope="module")
def worker(engine: HuggingFaceEngine) -> Worker:
    return Worker(deploy.derive_wallet("test", "node"), make_model_params(), engine)


def seed_by_hand(*values: int | str) -> int:
    """keccak of the ABI words of beacon, pool, version, node, task, group[, sibling], cut to 63 bits."""
    words = [bytes.fromhex(v[2:]).rjust(32, b"\0") if isinstance(v, str) else v.to_bytes(32, "big") for v in values]
    return int.from_bytes(keccak(b"".join(words)), "big") >> 193


def test_build_slots__task__means_these_seeds_and_prompts_in_this_order(worker: Worker, engine: HuggingFaceEngine):
    slots = generation.build_slots(
        make_task(policy_version=Step(3)),
        worker.params,
        pool=PoolId(1),
        node=worker.wallet.address,
        environment=registry.load(DEMO),
        engine=engine,
    )
    assert [(slot.group, slot.sibling) for slot in slots] == [(g, s) for g in range(2) for s in range(4)]
    shared = (MANIFEST, 1, 3, worker.wallet.address, 7)
    assert [slot.request.seed for slot in slots] == [seed_by_hand(*shared, g, s) for g in range(2) for s in range(4)]
    environment = registry.load(DEMO)
    prompts = [environment.prompt(seed_by_hand(*shared, g)) for g in range(2) for _ in range(4)]
    assert [slot.prompt for slot in slots] == prompts
    for slot in slots:
        tokens = engine.tokenizer.encode(slot.prompt.text + "\n", add_special_tokens=False)
        assert slot.request.prompt == (2, *tokens)
        assert slot.request.max_tokens == 5


@pytest.mark.parametrize(
    "changes", [{"task": 8}, {"policy_version": 1}, {"manifest_hash": make_hash("other")}, {"lease": 10}]
)
def test_build_slots__another_task_version_or_manifest__has_other_seeds_and_another_lease_has_not(
    worker: Worker, changes: dict[str, object]
):
    def seeds(task) -> set[int]:
        slots = generation.build_slots(
            task,
            worker.params,
            pool=PoolId(1),
            node=worker.wallet.address,
            environment=worker.environment,
            engine=worker.engine,
        )
        return {slot.request.seed for slot in slots}

    shared = seeds(make_task()) & seeds(make_task(**changes))
    assert len(shared) == (8 if "lease" in changes else 0)


def test_build_slots__prompt_beyond_the_limit__is_refused(worker: Worker):
    tight = Worker(
        worker.wallet,
        make_model_params(model={"max_prompt_tokens": 10, "max_completion_tokens": 5}),
        worker.engine,
    )
    with pytest.raises(ProtocolError) as caught:
        tight.work()
    assert caught.value.code == "prompt_too_long"


def test_roll_out__twice__gives_the_same_file(worker: Worker):
    """So that a lost file is no excuse, and a repeated run repeats."""
    assert worker.work().file == worker.work().file


def test_build_receipt__file__is_named_by_its_hash_and_counted(worker: Worker):
    work = worker.work()
    receipt = work.receipt
    assert receipt.work_key == "0x" + hashlib.sha256(work.file).hexdigest()
    assert receipt.units == sum(len(row.tokens) for row in work.rollouts) == count_units(work.rollouts)
    assert (receipt.task, receipt.lease, receipt.groups, receipt.policy_version) == (7, 9, 2, 0)
    assert receipt.deadline == 1000 + 86_400


# -- the operator's promise


def answer_to(receipt: messages.Receipt, *, signer=OPERATOR, **changes: object) -> SubmissionAnswer:
    values = {"receipt_hash": eip712.compute_struct_hash(receipt), "signed_at": 1000, "latest_epoch": 64}
    promise = Countersignature(**(values | changes))
    return SubmissionAnswer(**eip712.to_dict(promise), signature=eip712.sign(promise, LEDGER, signer))


def require(
    answer: SubmissionAnswer, receipt: messages.Receipt, *, earliest: int = 900, latest: int = 1100, epochs=(3, 5)
):
    return receipts.require_promise(
        answer,
        receipt,
        domain=LEDGER,
        operator=OPERATOR.address,
        earliest=earliest,
        latest=latest,
        first_epochs=epochs[0],
        last_epochs=epochs[1],
    )


@pytest.fixture(scope="module")
def receipt(worker: Worker) -> messages.Receipt:
    return worker.work().receipt


def test_require_promise__lawful__is_returned(receipt: messages.Receipt):
    promise = require(answer_to(receipt), receipt, earliest=999, latest=1000)
    assert (promise.signed_at, promise.latest_epoch) == (1000, 64)
    assert promise.receipt_hash == eip712.compute_struct_hash(receipt)


def code_of(answer: SubmissionAnswer, receipt: messages.Receipt, **times: int) -> str:
    with pytest.raises(ProtocolError) as caught:
        require(answer, receipt, **times)
    return caught.value.code


def test_require_promise__for_another_receipt__is_refused(receipt: messages.Receipt):
    other = dataclasses.replace(receipt, units=1)
    assert code_of(answer_to(other), receipt) == "bad_countersignature"


@pytest.mark.parametrize(("earliest", "latest"), [(1000, 1100), (900, 999)])
def test_require_promise__back_dated_or_ahead__is_refused(receipt: messages.Receipt, earliest: int, latest: int):
    """The date decides which later block draws the audit: it must not be chosen."""
    assert code_of(answer_to(receipt), receipt, earliest=earliest, latest=latest) == "bad_countersignature"


@pytest.mark.parametrize(
    ("latest", "is_fair"), [(0, False), (2, False), (3, True), (133, True), (134, False), (1 << 62, False)]
)
def test_require_promise__epoch_long_past_or_far_away__is_refused(
    receipt: messages.Receipt, latest: int, is_fair: bool
):
    """Three epochs when it was first sent, five when the answer came: 3 to 5 + 128 can be held and challenged."""
    answer = answer_to(receipt, latest_epoch=latest)
    if is_fair:
        assert require(answer, receipt).latest_epoch == latest
    else:
        assert code_of(answer, receipt) == "bad_countersignature"


def test_require_promise__not_the_operators__is_refused(receipt: messages.Receipt):
    stranger = deploy.derive_wallet("test", "stranger")
    assert code_of(answer_to(receipt, signer=stranger), receipt) == "bad_countersignature"
    altered = answer_to(receipt).model_copy(update={"latest_epoch": 99})
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
