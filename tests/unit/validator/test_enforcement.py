"""A hard rejection goes to court only with a quorum's own signatures, and is executed only after the veto window."""

from types import SimpleNamespace

import pytest

from covey import devnet
from covey.chain.structs import CaseState
from covey.protocol import messages, wire
from covey.protocol.messages import Receipt, Verdict
from covey.protocol.verdict import Decision, Reason, Severity
from tests.fakes.pool import make_address, make_hash
from tests.fakes.tools import DOMAIN
from validator import enforcement

pytestmark = pytest.mark.unit
NODE = devnet.derive_wallet("test", "node")
VALIDATORS = [devnet.derive_wallet("test", f"validator-{i}") for i in range(3)]
RECEIPT = Receipt(
    pool=1, task=7, lease=9, node=NODE.address, contributor=make_address("c"), policy_version=0,
    work_key=make_hash("w"), groups=2, units=9, deadline=2**62,
)  # fmt: skip
RECEIPT_HASH = messages.compute_struct_hash(RECEIPT)


def build_case(signers=VALIDATORS[:2], *, node=NODE) -> wire.HardCase:
    verdicts = [
        Verdict(
            pool=1, receipt_hash=RECEIPT_HASH, work_key=RECEIPT.work_key, validator=wallet.address,
            outcome=Decision.REJECT, reason=Reason.PROOF, severity=Severity.HARD, units=0,
            evidence_hash=make_hash("e"), deadline=2**62,
        )
        for wallet in signers
    ]  # fmt: skip
    return wire.HardCase(
        receipt=wire.ReceiptBody.of(RECEIPT),
        signature=messages.sign(RECEIPT, DOMAIN, node),
        verdicts=tuple(wire.VerdictBody.of(verdict) for verdict in verdicts),
        signatures=tuple(messages.sign(v, DOMAIN, wallet) for v, wallet in zip(verdicts, signers, strict=True)),
    )


def enforce(case: wire.HardCase, *, case_id: int = 0, state: CaseState = CaseState.LOCKED, now: int = 100) -> list[str]:
    """Keys of what was sent; the veto window of the known case ends at 100."""
    sent: list[str] = []
    court = SimpleNamespace(
        case_of=lambda receipt_hash: case_id if receipt_hash == RECEIPT_HASH else 0,
        get_case=lambda _: SimpleNamespace(state=state, veto_until=100),
        propose=lambda *_: "propose",
        execute=lambda number: f"execute {number}",
    )
    pools = SimpleNamespace(get_validators=lambda _: [wallet.address for wallet in VALIDATORS])
    network = SimpleNamespace(
        contracts=SimpleNamespace(court=court, pools=pools),
        chain=SimpleNamespace(get_block=lambda _: SimpleNamespace(timestamp=now)),
        receipt_domain=DOMAIN,
        terms=SimpleNamespace(quorum=2),
        pool=1,
    )
    enforcement.enforce(SimpleNamespace(network=network, send=lambda key, call: sent.append(key)), case)
    return sent


def test_enforce__quorum_of_signatures__proposes_under_a_key_that_names_the_receipt():
    assert enforce(build_case()) == [f"propose/{RECEIPT_HASH}"]


@pytest.mark.parametrize(
    "case",
    [
        build_case(VALIDATORS[:1]),
        build_case([VALIDATORS[0], VALIDATORS[0]]),
        build_case([VALIDATORS[0], NODE]),
        build_case(node=VALIDATORS[0]),
        build_case().model_copy(update={"signatures": build_case().signatures[:1]}),
        build_case().model_copy(update={"signatures": build_case().signatures[::-1]}),
        build_case([]),
    ],
    ids=["one", "one twice", "no validator", "receipt of another", "signature missing", "exchanged", "none"],
)
def test_enforce__what_the_coordinator_invented__proposes_nothing(case: wire.HardCase):
    assert enforce(case) == []


@pytest.mark.parametrize(("now", "sent"), [(99, []), (100, []), (101, ["execute/4"])])
def test_enforce__case_that_is_locked__waits_for_the_veto_window(now: int, sent: list[str]):
    assert enforce(build_case(), case_id=4, now=now) == sent


@pytest.mark.parametrize("state", [state for state in CaseState if state is not CaseState.LOCKED])
def test_enforce__case_that_is_over__sends_nothing(state: CaseState):
    assert enforce(build_case(), case_id=4, state=state, now=10**6) == []
