"""Which verdicts a case refutes, and what of a coordinator's report about a submission is believed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from covey.chain.structs import Accusation, OnChainCaseState
from covey.chain.wallet import wallet_from_key
from covey.errors import ProtocolError
from covey.network.false_verdicts import list_false_verdicts, require_true
from covey.protocol.api.common import VerdictBody
from covey.protocol.eip712 import Domain, sign
from covey.protocol.messages import Verdict
from covey.protocol.verdict import Decision, Reason, Severity
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit
DOMAIN = Domain(chain_id=1, contract=make_address("court"))
JUDGE = wallet_from_key(b"\x01" * 32)
REJECT = Verdict(
    pool=1, receipt_hash=make_hash("receipt"), work_key=make_hash("work"), validator=JUDGE.address,
    outcome=Decision.REJECT, reason=Reason.PROOF, severity=Severity.HARD, units=0,
    evidence_hash=make_hash("evidence"), deadline=9,
)  # fmt: skip
PARTIAL = replace(REJECT, outcome=Decision.ACCEPT, reason=Reason.NONE, severity=Severity.NONE)
WHOLE = replace(PARTIAL, severity=Severity.HARD)
OTHER = replace(REJECT, reason=Reason.LOGPROB)
ACCUSED = Accusation(receipt_hash=REJECT.receipt_hash, pool=1, node=make_address("n"), contributor=make_address("c"))


def report(*verdicts: Verdict, **changes: object) -> SimpleNamespace:
    signatures = [sign(each, DOMAIN, JUDGE) for each in verdicts]
    bodies = [VerdictBody.of(each) for each in verdicts]
    values = {"receipt_hash": REJECT.receipt_hash, "receipt": None, "kind": None} | changes
    return SimpleNamespace(**({"verdicts": bodies, "signatures": signatures} | values))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (OnChainCaseState.SLASHED, [(WHOLE, True)]),
        (OnChainCaseState.VETOED, [(REJECT, False)]),
        (OnChainCaseState.LOCKED, []),
        (OnChainCaseState.LAPSED, []),
    ],
)
def test_list_false_verdicts__case__refutes_the_hard_verdicts_of_the_other_side(
    state: OnChainCaseState, expected: list[tuple[Verdict, bool]]
):
    case, detail = SimpleNamespace(state=state, reason=Reason.PROOF), report(REJECT, PARTIAL, WHOLE, OTHER)
    found = list_false_verdicts(ACCUSED, case, detail)
    assert [(each.verdict, each.is_accept) for each in found] == expected


def test_require_true__honest_report__passes():
    require_true(report(REJECT, WHOLE), REJECT.receipt_hash[:10], pool=1, domain=DOMAIN)


@pytest.mark.parametrize(
    ("detail", "code"),
    [
        (report(REJECT, receipt_hash=make_hash("another")), "bad_answer"),
        (report(replace(REJECT, receipt_hash=make_hash("another"))), "bad_answer"),
        (report(REJECT, signatures=[]), "bad_answer"),
        (report(replace(REJECT, validator=make_address("somebody"))), "bad_signature"),
    ],
    ids=["other submission", "verdict about another", "no signature", "signature of another"],
)
def test_require_true__lying_coordinator__is_refused(detail: SimpleNamespace, code: str):
    with pytest.raises(ProtocolError) as caught:
        require_true(detail, REJECT.receipt_hash, pool=1, domain=DOMAIN)
    assert caught.value.code == code
