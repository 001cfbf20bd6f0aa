import inspect
import json

import pytest
from pydantic import TypeAdapter, ValidationError

from covey.protocol import eip712, messages
from covey.protocol.api import common, public, trainer, validator, worker
from covey.protocol.api.common import (
    AddressText,
    Body,
    ErrorBody,
    HashText,
    ReceiptBody,
    SignatureText,
    UInt64,
    VerdictBody,
)
from covey.protocol.api.public import NodeView, StatusView
from covey.protocol.api.validator import RevealOrder, RevealRequest, ValidationOrders
from covey.protocol.api.worker import ClaimRequest, Heartbeat, TaskOrder, UploadRequest
from tests.fakes.pool import INSTANCE

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
HASH = "0x" + "ab" * 32
RECEIPT = messages.Receipt(
    pool=1,
    task=7,
    lease=9,
    node=ALICE,
    contributor=ALICE,
    policy_version=3,
    work_key=HASH,
    groups=2,
    units=64,
    deadline=1_700_000_000,
)
VERDICT = messages.Verdict(
    pool=1,
    receipt_hash=HASH,
    work_key=HASH,
    validator=ALICE,
    outcome=2,
    reason=5,
    severity=2,
    units=0,
    evidence_hash=HASH,
    deadline=1_700_000_000,
)
BODIES = {
    kind
    for module in (common, public, trainer, validator, worker)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, Body)
}


@pytest.mark.parametrize(("kind", "message"), [(ReceiptBody, RECEIPT), (VerdictBody, VERDICT)])
def test_body__of_a_signed_message__round_trips_through_json(kind, message):
    body = kind.of(message)
    assert kind.model_validate_json(body.model_dump_json()).to_message() == message
    assert json.loads(body.model_dump_json()) == eip712.to_dict(message)


@pytest.mark.parametrize("kind", sorted(BODIES, key=lambda kind: kind.__name__))
def test_body__every_kind__is_frozen_and_refuses_unknown_fields(kind):
    assert kind.model_config["frozen"] is True
    with pytest.raises(ValidationError, match=r"surprise\n  Extra inputs are not permitted"):
        kind.model_validate({"surprise": 1})


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (HashText, HASH, [HASH.upper(), HASH + "\n", HASH[:-1], "", "0x" + "g" * 64, 5, None]),
        (AddressText, ALICE, [ALICE + "\n", ALICE[:-1], "0x" + "g" * 40, ALICE[2:], None]),
        (SignatureText, "0x" + "ab" * 65, ["0x" + "AB" * 65, "0x" + "ab" * 64, "0x" + "ab" * 65 + "\n", ""]),
        (UInt64, 2**63 - 1, [-1, 2**63, 1.5, "x", 10**400]),
    ],
)
def test_scalar__wrong_form__refused(kind, good, bad):
    adapter = TypeAdapter(kind)
    assert adapter.validate_python(good) == good
    for value in bad:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


NAMED = f'{{"instance": "{INSTANCE}", '


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Heartbeat, '{"free_slots": 1}'),
        (Heartbeat, '{"free_slots": 1, "instance": "00"}'),
        (ClaimRequest, NAMED + '"free_slots": 1, "wait_seconds": 20.1}'),
        (ClaimRequest, NAMED + '"free_slots": 1, "wait_seconds": -1}'),
        (ClaimRequest, NAMED + '"free_slots": 1, "wait_seconds": NaN}'),
        (ClaimRequest, NAMED + '"free_slots": 4097}'),
        (ClaimRequest, NAMED + '"free_slots": -1}'),
        (ClaimRequest, NAMED + '"free_slots": 1, "cached_version": -1}'),
        (
            TaskOrder,
            '{"task": 1, "lease": 1, "policy_version": 0, "groups": 1, "deadline": NaN, "record_hash": "' + HASH + '"}',
        ),
        (UploadRequest, f'{{"task": 1, "lease": 1, "work_key": "{HASH}", "size": 0}}'),
        (UploadRequest, f'{{"task": -1, "lease": 1, "work_key": "{HASH}", "size": 1}}'),
        (ErrorBody, '{"code": "x", "message": "y", "time": 1' + "0" * 400 + "}"),
        (ErrorBody, '{"code": "x", "message": "y", "time": -1}'),
        (ValidationOrders, '{"orders": [{"kind": "other", "judgement": 1}]}'),
        (ValidationOrders, '{"orders": [' + ", ".join(['{"kind": "reveal", "judgement": 1}'] * 65) + "]}"),
        (Heartbeat, "[" * 10_000),
        (Heartbeat, ""),
    ],
)
def test_body__out_of_bounds__refused(kind, text):
    with pytest.raises(ValidationError):
        kind.model_validate_json(text)


def test_reveal__too_much_evidence__refused():
    base = {"judgement": 1, "verdict": VerdictBody.of(VERDICT), "signature": "0x" + "00" * 65, "salt": HASH}
    assert RevealRequest(**base, evidence="x" * 65_536).judgement == 1
    with pytest.raises(ValidationError, match="65536"):
        RevealRequest(**base, evidence="x" * 65_537)


def test_validation_order__kinds__are_distinguished():
    text = '{"orders": [{"kind": "reveal", "judgement": 4}]}'
    assert ValidationOrders.model_validate_json(text).orders == (RevealOrder(judgement=4),)


STATUS = {
    "pool": 1,
    "time": 1_700_000_000,
    "block": 5,
    "ended": False,
    "settled": False,
    "step": -1,
    "steps": [],
    "tasks": {},
    "submissions": {},
    "reasons": {},
    "nodes": {ALICE: {"contributor": ALICE, "suspended": "", "accepted": 2}},
    "validators": {},
    "epochs": [],
}


def test_status__of_a_coordinator__is_accepted():
    status = StatusView.model_validate_json(json.dumps(STATUS))
    assert status.nodes == {ALICE: NodeView(contributor=ALICE, suspended="", accepted=2)}


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": {ALICE: 3}},
        {"nodes": {ALICE: {"contributor": ALICE, "suspended": ""}}},
        {"nodes": {ALICE: {"contributor": ALICE, "suspended": "", "accepted": "many"}}},
        {"nodes": {"a": {"contributor": ALICE, "suspended": "", "accepted": 2}}},
        {"time": 10**400},
        {"block": -1},
        {"step": -2},
        {"reasons": {"work": 1 << 63}},
    ],
)
def test_status__value_that_commands_cannot_use__refused(change):
    with pytest.raises(ValidationError):
        StatusView.model_validate_json(json.dumps(STATUS | change))
