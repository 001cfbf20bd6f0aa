"""A verdict counts only with the bond that backs it, while a submission is judged and until its case is open."""

import dataclasses

import pytest

from coordinator.db.models import CaseRow
from covey.protocol.status import CaseState, SubmissionState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import FakePool, make_address, make_hash

pytestmark = pytest.mark.unit
ACCEPT, REJECT = Decision.ACCEPT, Decision.REJECT


@pytest.fixture
def receipt(pool: FakePool) -> str:
    """A submission of a node, for three validators, two of which are a quorum. Each may take any turn."""
    pool.validators = pool.validators[:3]
    pool.register("a")
    pool.publish(0)
    receipt = pool.work("a")
    pool.dispatch()
    pool.now += 2 * pool.params.turn_seconds
    return receipt


def let_two_speak(pool: FakePool, receipt: str, decision: Decision) -> None:
    """Let validators 0 and 1 reveal a decision, which is not looked at yet."""
    turns = [pool.claim(index)[1] for index in (0, 1)]
    for index, turn in enumerate(turns):
        pool.commit(index, turn, pool.build_verdict(index, receipt, decision))
    for turn in turns:
        pool.reveal(turn)


def test_claim__validator_without_its_bond__gets_no_turn(pool: FakePool, receipt: str):
    pool.bondless = {0}
    assert pool.claim(0) is None
    assert pool.claim(1) is not None


@pytest.mark.parametrize("decision", [ACCEPT, REJECT])
def test_dispatch__bond_withdrawn_before_the_decision__another_validator_is_asked(
    pool: FakePool, receipt: str, decision: Decision
):
    """Its signature would make the court refuse the case, and nobody else was asked."""
    let_two_speak(pool, receipt, decision)
    pool.bondless = {0}
    pool.dispatch()
    assert pool.submission(receipt).state is SubmissionState.SUBMITTED
    pool.judge(receipt, [(2, decision, {})])
    row = pool.submission(receipt)
    assert row.decision is decision
    assert {turn.validator for turn in row.turns if not turn.lapsed} == set(pool.validators[1:])


def test_dispatch__bond_comes_back__validator_does_not_speak_twice(pool: FakePool, receipt: str):
    let_two_speak(pool, receipt, REJECT)
    pool.bondless = {0}
    pool.dispatch()
    pool.bondless = set()
    pool.dispatch()
    pool.now += 2 * pool.params.turn_seconds
    assert pool.claim(0) is None
    assert pool.claim(2) is not None


def test_seek_signatures__bond_withdrawn_after_the_rejection__a_third_validator_signs(pool: FakePool, receipt: str):
    pool.reject(receipt)
    assert pool.seek_signatures() == 0, "a quorum has signed"
    pool.bondless = {0}
    assert (pool.seek_signatures(), pool.seek_signatures()) == (1, 0)
    assert pool.claim(1) is None, "it has signed"
    kind, turn = pool.claim(2)
    pool.commit(2, turn, pool.build_verdict(2, receipt, REJECT))
    pool.reveal(turn)
    assert pool.seek_signatures() == 0
    row = pool.submission(receipt)
    signers = [each.validator for each in row.turns if each.verdict and each.verdict.reason == Reason.PROOF]
    assert (kind, signers, row.state) == ("judge", pool.validators, SubmissionState.REJECTED)


def test_seek_signatures__turn_that_is_taken_and_dropped__is_opened_again(pool: FakePool, receipt: str):
    pool.validators.append(make_address("validator-3"))
    pool.reject(receipt)
    pool.bondless = {0}
    assert pool.seek_signatures() == 1
    assert pool.claim(2) is not None
    pool.now += pool.params.judgement_seconds + 1
    assert pool.seek_signatures() == 1
    assert pool.claim(3) is not None


def test_seek_signatures__signer_that_waits_for_another_one__keeps_its_turn(pool: FakePool, receipt: str):
    pool.validators.append(make_address("validator-3"))
    pool.reject(receipt)
    pool.bondless = {0, 1}
    assert pool.seek_signatures() == 2
    _, turn = pool.claim(2)
    pool.commit(2, turn, pool.build_verdict(2, receipt, REJECT))
    pool.now += pool.params.judgement_seconds + 1
    assert pool.seek_signatures() == 0
    _, other = pool.claim(3)
    pool.commit(3, other, pool.build_verdict(3, receipt, REJECT))
    for each in (turn, other):
        pool.reveal(each)


def test_seek_signatures__signature_that_has_expired__another_validator_signs(pool: FakePool, receipt: str):
    pool.reject(receipt)
    with pool.database.write() as rows:
        turn = rows.get_submission(receipt).turns[0]
        turn.verdict = dataclasses.replace(turn.verdict, deadline=int(pool.now))
    assert pool.seek_signatures() == 1


def test_seek_signatures__time_is_over__ends_the_turns_under_way(pool: FakePool, receipt: str):
    """A committed validator was told to reveal for ever, and judged nothing else."""
    pool.reject(receipt)
    pool.bondless = {0}
    assert pool.seek_signatures() == 1
    _, turn = pool.claim(2)
    pool.commit(2, turn, pool.build_verdict(2, receipt, REJECT))
    assert pool.claim(2) == ("reveal", turn)
    pool.now += 86_401
    assert pool.seek_signatures() == 0
    assert pool.claim(2) is None


@pytest.mark.parametrize("bondless", [{0, 1}, {0, 1, 2}])
def test_dispatch__fewer_bonds_than_the_quorum_for_a_while__work_is_not_void(
    pool: FakePool, receipt: str, bondless: set[int]
):
    pool.bondless = bondless
    for _ in range(3):
        pool.dispatch()
        pool.now += 60
    assert pool.submission(receipt).state is SubmissionState.SUBMITTED
    pool.bondless = set()
    pool.judge(receipt, [(0, ACCEPT, {}), (1, ACCEPT, {})])
    assert pool.submission(receipt).state is SubmissionState.ACCEPTED


@pytest.mark.parametrize("state", [CaseState.LOCKED, CaseState.VETOED])
def test_seek_signatures__case_that_was_opened__needs_no_more(pool: FakePool, receipt: str, state: CaseState):
    pool.reject(receipt)
    pool.bondless = {0}
    with pool.database.write() as rows:
        row = rows.get_submission(receipt)
        rows.add(
            CaseRow(
                receipt_hash=receipt, node=row.node, contributor=row.contributor, state=state, block_number=1,
                transaction_hash=make_hash("case"),
            )
        )  # fmt: skip
    assert pool.seek_signatures() == 0


def test_seek_signatures__a_day_later_or_nobody_left__opens_nothing(pool: FakePool, receipt: str):
    pool.reject(receipt)
    pool.bondless = {0, 2}
    assert pool.seek_signatures() == 0
    pool.bondless = {0}
    pool.now += 86_401
    assert pool.seek_signatures() == 0


def test_list_held__turn_of_a_rejected_submission__is_not_held_for_ever(pool: FakePool, receipt: str):
    """A validator that died during its turn had one seat less for each such rejection, and none after sixteen."""
    _, first = pool.claim(0)
    pool.commit(0, first, pool.build_verdict(0, receipt, ACCEPT))
    _, second = pool.claim(1)
    pool.commit(1, second, pool.build_verdict(1, receipt, REJECT))
    for turn in (first, second):
        pool.reveal(turn)
    pool.dispatch()
    pool.now += 3 * pool.params.turn_seconds
    assert pool.claim(2) is not None
    with pool.database.write() as rows:
        row = rows.get_submission(receipt)
        row.turns[0].verdict = pool.build_verdict(0, receipt, REJECT)
        row.next_check_at = 0.0
    pool.dispatch()
    assert pool.submission(receipt).state is SubmissionState.REJECTED
    with pool.database.read() as rows:
        assert rows.list_held(pool.validators[2]) == []
