"""Leaves of an epoch against own verdicts: what a validator lets pass, contests, or refuses in any case."""

from dataclasses import replace

import pytest

from covey.devnet import deploy
from covey.errors import ProtocolError
from covey.protocol import eip712
from covey.protocol.api.common import VerdictBody
from covey.protocol.api.validator import SignedVerdicts
from covey.protocol.epochs import WorkLeaf
from covey.protocol.messages import Verdict
from covey.protocol.verdict import Decision, Reason, Severity
from tests.fakes.pool import make_address, make_hash
from tests.fakes.tools import DOMAIN
from validator.epoch_leaves import find_contested, require_supported
from validator.own_verdicts import OwnVerdict

pytestmark = pytest.mark.unit
VALIDATORS = [deploy.derive_wallet("test", f"validator-{i}") for i in range(3)]
OTHERS = {wallet.address for wallet in VALIDATORS}
LEAF = WorkLeaf(
    receipt_hash=make_hash("r"), work_key=make_hash("w"), node=make_address("n"), contributor=make_address("c"),
    task=1, policy_version=0, signed_at=5, outcome=int(Decision.ACCEPT), reason=0, units=20,
    evidence_hash=make_hash("e"),
)  # fmt: skip
ACCEPTED = OwnVerdict(
    make_hash("r"), make_hash("w"), make_address("n"), make_address("c"), int(Decision.ACCEPT), int(Severity.HARD), 20
)
HARD = replace(ACCEPTED, outcome=int(Decision.REJECT), units=0)


@pytest.mark.parametrize(
    ("leaf", "own", "is_contested"),
    [
        (LEAF, ACCEPTED, False),
        (replace(LEAF, units=19), ACCEPTED, False),
        (replace(LEAF, units=21), ACCEPTED, True),
        (LEAF, HARD, True),
        (LEAF, replace(HARD, severity=int(Severity.SOFT)), False),
        (replace(LEAF, outcome=int(Decision.REJECT), reason=int(Reason.PROOF), units=0), HARD, False),
        (replace(LEAF, outcome=int(Decision.REJECT), reason=int(Reason.PROOF), units=0), ACCEPTED, False),
        (replace(LEAF, receipt_hash=make_hash("another"), units=10**6), ACCEPTED, False),
    ],
)
def test_find_contested__leaf_that_pays_against_the_own_verdict__is_contested(
    leaf: WorkLeaf, own: OwnVerdict, is_contested: bool
):
    assert find_contested([leaf], {own.receipt_hash: own}) == ([leaf] if is_contested else [])


@pytest.mark.parametrize(
    "leaf",
    [
        replace(LEAF, contributor=make_address("thief")),
        replace(LEAF, node=make_address("thief")),
        replace(LEAF, work_key=make_hash("another")),
        replace(LEAF, receipt_hash=make_hash("unknown"), outcome=int(Decision.REJECT), units=1),
    ],
)
def test_find_contested__another_receipt_or_pay_for_rejected_work__is_false_in_any_case(leaf: WorkLeaf):
    with pytest.raises(ProtocolError) as caught:
        find_contested([leaf], {LEAF.receipt_hash: ACCEPTED})
    assert caught.value.code == "false_leaf"


def show(*verdicts: Verdict, signers=VALIDATORS) -> SignedVerdicts:
    return SignedVerdicts(
        verdicts=tuple(VerdictBody.of(verdict) for verdict in verdicts),
        signatures=tuple(eip712.sign(v, DOMAIN, wallet) for v, wallet in zip(verdicts, signers, strict=False)),
    )


def accept(validator: int, **changes: object) -> Verdict:
    verdict = Verdict(
        pool=1, receipt_hash=LEAF.receipt_hash, work_key=LEAF.work_key, validator=VALIDATORS[validator].address,
        outcome=int(Decision.ACCEPT), reason=0, severity=int(Severity.HARD), units=20, evidence_hash=make_hash("e"),
        deadline=2**62,
    )  # fmt: skip
    return replace(verdict, **changes)


def test_require_supported__quorum_of_others_accepts_the_leaf_as_it_is__is_true():
    require_supported([LEAF], show(accept(0), accept(1)), domain=DOMAIN, others=OTHERS, quorum=2)


@pytest.mark.parametrize(
    "shown",
    [
        show(),
        show(accept(0)),
        show(accept(0), accept(0), signers=[VALIDATORS[0]] * 2),
        show(accept(0), accept(1), signers=[VALIDATORS[0]] * 2),
        show(accept(0), accept(1, units=19)),
        show(accept(0), accept(1, outcome=int(Decision.REJECT), units=0)),
        show(accept(0), accept(1, work_key=make_hash("another"))),
        show(accept(0), accept(1, receipt_hash=make_hash("another"))),
    ],
    ids=["none", "one", "twice the same", "forged", "other units", "rejected", "another file", "another receipt"],
)
def test_require_supported__fewer_than_a_quorum__is_refused(shown: SignedVerdicts):
    with pytest.raises(ProtocolError, match="of 2 other validators") as caught:
        require_supported([LEAF], shown, domain=DOMAIN, others=OTHERS, quorum=2)
    assert caught.value.code == "false_leaf"


def test_require_supported__signed_by_a_stranger__does_not_count():
    shown = show(accept(0), accept(1))
    with pytest.raises(ProtocolError):
        require_supported([LEAF], shown, domain=DOMAIN, others=OTHERS - {VALIDATORS[1].address}, quorum=2)
