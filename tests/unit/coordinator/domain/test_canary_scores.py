"""Canaries are void whatever the validators say, cost nobody anything, and tell who judged without looking."""

from typing import Any

import pytest
from pydantic import ValidationError

from coordinator.config import CoordinatorConfig
from coordinator.domain import audit_draws, canary_scores, settlement
from covey.chain.wallet import Wallet
from covey.devnet.deploy import derive_wallet
from covey.protocol.canaries import CanaryKind, compute_canary_commitment
from covey.protocol.eip712 import Domain, sign
from covey.protocol.ids import Address, Hash
from covey.protocol.messages import CanaryConsent, Receipt
from covey.protocol.seeding import is_audited
from covey.protocol.status import StepState, SubmissionState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import SECRET, FakePool, code_of, make_address, make_hash, make_params

pytestmark = pytest.mark.unit
ACCEPT, REJECT, UNKNOWN = Decision.ACCEPT, Decision.REJECT, Decision.UNKNOWN
SAID = {
    "accepted": (ACCEPT, {"units": 20}),
    "rejected hard": (REJECT, {"reason": Reason.PROOF}),
    "rejected softly": (REJECT, {"reason": Reason.REWARD}),
    "nobody knows": (UNKNOWN, {}),
}


@pytest.fixture
def watched(pool: FakePool) -> FakePool:
    """Nodes a (ordinary), bad and good (canaries); four validators, a quorum of two, step 0 open."""
    pool.validators = [make_address(f"validator-{i}") for i in range(4)]
    pool.canaries = {"bad": CanaryKind.REJECT, "good": CanaryKind.ACCEPT}
    pool.register("a", "bad", "good")
    pool.publish(0)
    return pool


def get_scores(pool: FakePool) -> dict[str, tuple[int, int, int]]:
    """(judged, canaries, missed) by name of the validator, of those that judged what is decided."""
    names = {address: f"validator-{i}" for i, address in enumerate(pool.validators)}
    with pool.database.read() as rows:
        found = canary_scores.count_scores(rows, bonds={}, active=())
    scores = {names[address]: (view.judged, view.canaries, view.missed) for address, view in found.items()}
    return {name: score for name, score in scores.items() if score[0]}


@pytest.mark.parametrize("node", ["bad", "good"])
@pytest.mark.parametrize("said", SAID)
def test_tally__canary__is_void_whatever_the_quorum_says(watched: FakePool, node: str, said: str):
    receipt_hash = watched.work(node)
    watched.dispatch()
    decision, changes = SAID[said]
    watched.judge(receipt_hash, [(i, decision, changes) for i in (0, 1)])
    if decision is UNKNOWN:
        watched.judge(receipt_hash, [(i, decision, changes) for i in (2, 3)])
    row, standing = watched.submission(receipt_hash), watched.node(node)
    assert (row.state, row.reason, row.units, row.canary) == (
        SubmissionState.VOID,
        Reason.CANARY,
        0,
        watched.canaries[node],
    )
    assert (standing.accepted, watched.strikes(node), standing.suspended) == (0, 0, "")
    with watched.database.read() as rows:
        assert list(rows.list_hard_rejections()) == []
        assert list(rows.list_unpacked(oldest_version=0)) == []
        leaf = settlement.build_work_leaf(row)
    assert (leaf.outcome, leaf.reason, leaf.units) == (UNKNOWN, 43, 0)


def test_tally__canaries_among_honest_work__enter_no_batch_and_are_planned_anew(watched: FakePool):
    """A step takes four groups: of three submissions of two groups, the canary's are not among them."""
    watched.accept(watched.work("good"))
    watched.accept(watched.work("a"))
    with watched.database.read() as rows:
        assert rows.get_latest_step().state is StepState.OPEN
    honest = watched.work("a")
    watched.accept(honest)
    with watched.database.read() as rows:
        assert rows.get_latest_step().state is StepState.READY
        assert {row.node for row in rows.list_batch(0)} == {make_address("a")}


def test_tally__ordinary_work_beside_canaries__is_paid_and_blamed_as_ever(watched: FakePool):
    watched.decide(watched.work("bad"))
    paid = watched.work("a", units=17)
    watched.accept(paid)
    cheat = watched.work("a")
    watched.reject(cheat)
    row = watched.submission(paid)
    assert (row.state, row.units, watched.submission(cheat).state) == (
        SubmissionState.ACCEPTED,
        17,
        SubmissionState.REJECTED,
    )
    assert watched.node("a").suspended == "rejected"


def test_record_submission__node_named_later__its_earlier_work_stays_ordinary(watched: FakePool):
    before = watched.work("a")
    watched.canaries["a"] = CanaryKind.ACCEPT
    after = watched.work("a")
    assert [watched.submission(each).canary for each in (before, after)] == [0, 2]
    watched.accept(before)
    assert watched.submission(before).state is SubmissionState.ACCEPTED


def test_draw__canary_of_a_proven_node__waits_for_its_block_and_is_replayed(watched: FakePool):
    watched.params = make_params(verification={"audit_rate": 0.01, "newcomer_submissions": 0})
    receipt_hash = watched.work("bad")
    ordinary = watched.work("a")
    undrawn = next(
        block
        for block in (make_hash(f"fork {i}") for i in range(20))
        if not is_audited(receipt_hash, block, 0.01) and not is_audited(ordinary, block, 0.01)
    )

    def draw(about: str, block: Hash | None) -> bool | None:
        with watched.database.write() as rows:
            row = rows.get_submission(about)
            found = None if block is None else audit_draws.DrawingBlock(9, block)
            audit_draws.draw(rows, watched.params, row, above=(), find_block=lambda _: found, secret=SECRET)
            return row.audited

    assert [draw(each, None) for each in (receipt_hash, ordinary)] == [None, None], "nothing tells them apart"
    assert [draw(each, undrawn) for each in (receipt_hash, ordinary)] == [True, False]


# -- what validators are known by


def test_count_scores__lazy_validator__is_found_by_each_canary_and_an_honest_one_by_none(watched: FakePool):
    """Validator 1 accepts all; three canaries known to be bad, two known to be good."""
    for node in ("bad", "good", "bad", "good", "bad"):
        receipt_hash = watched.work(node)
        watched.dispatch()
        watched.now += 4 * watched.params.turn_seconds  # a validator that was contradicted is asked last
        honest = (ACCEPT, {}) if node == "good" else (REJECT, {"reason": Reason.PROOF})
        watched.judge(receipt_hash, [(0, *honest), (1, ACCEPT, {})])
        if node == "bad":
            watched.judge(receipt_hash, [(2, *honest)])
    assert get_scores(watched) == {"validator-0": (5, 5, 0), "validator-1": (5, 5, 3), "validator-2": (3, 3, 0)}


def test_count_scores__who_rejects_all__is_found_by_known_good_work(watched: FakePool):
    receipt_hash = watched.work("good")
    watched.dispatch()
    watched.judge(receipt_hash, [(0, REJECT, {}), (1, ACCEPT, {})])
    watched.judge(receipt_hash, [(2, ACCEPT, {})])
    assert get_scores(watched) == {"validator-0": (1, 1, 1), "validator-1": (1, 1, 0), "validator-2": (1, 1, 0)}


def test_count_scores__unknown_and_ordinary__are_neither_right_nor_wrong(watched: FakePool):
    receipt_hash = watched.work("bad")
    watched.dispatch()
    watched.judge(receipt_hash, [(0, UNKNOWN, {}), (1, REJECT, {})])
    assert get_scores(watched) == {}, "it is not decided"
    watched.judge(receipt_hash, [(2, REJECT, {})])
    watched.accept(watched.work("a"))
    assert get_scores(watched) == {"validator-0": (2, 0, 0), "validator-1": (2, 1, 0), "validator-2": (1, 1, 0)}


def test_count_scores__not_replayed__counts_against_nobody(watched: FakePool):
    receipt_hash = watched.work("bad")
    watched.accept(receipt_hash)
    with watched.database.write() as rows:
        rows.get_submission(receipt_hash).audited = False
    assert get_scores(watched) == {"validator-0": (1, 0, 0), "validator-1": (1, 0, 0)}


@pytest.mark.parametrize("reason", [Reason.CANARY, Reason.UNDECIDED])
def test_record_reveal__reason_that_only_the_coordinator_gives__is_refused(watched: FakePool, reason: Reason):
    receipt_hash = watched.work("a")
    watched.dispatch()
    taken = [watched.claim(i)[1] for i in (0, 1)]
    for i, judgement in enumerate(taken):
        watched.commit(i, judgement, watched.build_verdict(i, receipt_hash, REJECT, reason=reason))
    assert code_of(watched.reveal, taken[0]) == "bad_verdict"


# -- what is shown


def test_compute_public__before_and_after__commitment_stays_and_opens(watched: FakePool):
    found = {}
    for node in ("a", "bad", "good"):
        receipt_hash = watched.work(node)
        before = canary_scores.compute_public(b"secret", watched.submission(receipt_hash))
        assert before[1:] == (None, None)
        watched.accept(receipt_hash)
        commitment, salt, kind = canary_scores.compute_public(b"secret", watched.submission(receipt_hash))
        assert commitment == before[0] == compute_canary_commitment(Hash(receipt_hash), salt, kind)
        assert commitment not in {compute_canary_commitment(receipt_hash, salt, k) for k in CanaryKind if k != kind}
        found[node] = kind
    assert found == {"a": CanaryKind.ORDINARY, "bad": CanaryKind.REJECT, "good": CanaryKind.ACCEPT}


DOMAIN = Domain(chain_id=1, contract=make_address("court"))
OWNER = derive_wallet("test", "owner")


def make_config(canaries: dict[str, Any]) -> CoordinatorConfig:
    return CoordinatorConfig(home="h", pool=1, deployment="d", key_file="k", canaries=canaries)


def make_canary(name: str, verdict: str, *, signer: Wallet = OWNER, **changes: Any) -> dict[str, str]:
    """Return the settings of a canary, with a consent to reject it."""
    values = {"pool": 1, "node": make_address(name), "kind": CanaryKind.REJECT} | changes
    return {"verdict": verdict, "consent": sign(CanaryConsent(**values), DOMAIN, signer)}


def make_receipt(name: str, contributor: Address = OWNER.address) -> Receipt:
    return Receipt(
        pool=1, task=1, lease=1, node=make_address(name), contributor=contributor, policy_version=0,
        work_key=make_hash("file"), groups=1, units=1, deadline=9,
    )  # fmt: skip


def test_find_consent__of_the_node_s_contributor__is_what_the_settings_say():
    canary = make_canary("bad", "reject")
    config = make_config({make_address("bad"): canary})
    found = [canary_scores.find_consent(config.canaries, make_receipt(name), DOMAIN) for name in ("bad", "a")]
    assert found == [(CanaryKind.REJECT, canary["consent"]), (CanaryKind.ORDINARY, "")]


@pytest.mark.parametrize(
    ("canary", "contributor"),
    [
        (make_canary("bad", "reject", signer=derive_wallet("test", "operator")), OWNER.address),
        (make_canary("bad", "reject"), make_address("new contributor")),
        (make_canary("bad", "accept"), OWNER.address),
        (make_canary("another", "reject"), OWNER.address),
        (make_canary("bad", "reject", pool=2), OWNER.address),
    ],
    ids=["the operator's own", "node moved", "other verdict", "other node", "other pool"],
)
def test_find_consent__without_that_of_the_contributor__work_is_ordinary(canary: dict[str, str], contributor: Address):
    """An operator that named the node of a stranger made all its honest work void, and paid nothing for it."""
    config = make_config({make_address("bad"): canary})
    receipt = make_receipt("bad", contributor)
    assert canary_scores.find_consent(config.canaries, receipt, DOMAIN) == (CanaryKind.ORDINARY, "")


@pytest.mark.parametrize(
    "canaries",
    [
        {make_address("bad").lower(): make_canary("bad", "reject")},
        {"0x12": make_canary("bad", "reject")},
        {make_address("bad"): make_canary("bad", "unknown")},
        {make_address("bad"): "reject"},
        {make_address("bad"): {"verdict": "reject", "consent": "0x12"}},
    ],
)
def test_config__no_address_verdict_or_consent__is_refused(canaries: dict[str, Any]):
    with pytest.raises(ValidationError):
        make_config(canaries)
