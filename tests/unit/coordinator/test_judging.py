"""Audits are drawn, verdicts committed before any is shown, a quorum of equal outcomes decides, and everything ends."""

import pytest

from coordinator import judging, service
from covey.protocol.seeding import is_audited
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import FakePool, code_of, make_address, make_hash, make_params

pytestmark = pytest.mark.unit
ACCEPT, REJECT, UNKNOWN = Decision.ACCEPT, Decision.REJECT, Decision.UNKNOWN


# -- the draw


def set_node(pool: FakePool, **values: int) -> None:
    with pool.database.write() as rows:
        node = service.require_node(rows, make_address("a"))
        for name, value in values.items():
            setattr(node, name, value)


def draw(pool: FakePool, receipt_hash: str) -> bool | None:
    with pool.database.read() as rows:
        return judging.draw_audit(rows, pool.params, rows.get_submission(receipt_hash), pool.blocks)


def test_draw_audit__newcomer__is_replayed_whatever_the_rate(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.params = make_params(verification={"audit_rate": 0.0, "newcomer_submissions": 3})
    set_node(pool, accepted=2)
    assert draw(pool, receipt_hash) is True
    set_node(pool, accepted=3)
    assert draw(pool, receipt_hash) is False


def test_draw_audit__proven_node__waits_for_the_second_block_after_the_promise(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.params = make_params(verification={"audit_rate": 0.5, "newcomer_submissions": 0})
    asked = []
    pool.blocks = asked.append
    assert draw(pool, receipt_hash) is None
    assert asked == [52], "the countersignature named block 50"
    drawn = set()
    for i in range(40):
        block = make_hash(f"fork {i}")
        pool.blocks = lambda _, block=block: block
        assert draw(pool, receipt_hash) is is_audited(receipt_hash, block, 0.5)
        drawn.add(draw(pool, receipt_hash))
    assert drawn == {True, False}


def test_draw_audit__strikes__raise_the_rate_to_certainty(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.params = make_params(verification={"audit_rate": 0.25, "newcomer_submissions": 0})
    pool.blocks = lambda _: None
    set_node(pool, strikes=2)
    assert draw(pool, receipt_hash) is None, "0.75 still needs a block"
    set_node(pool, strikes=3)
    assert draw(pool, receipt_hash) is True


def test_dispatch__no_drawing_block_yet__opens_no_judgement(pool: FakePool):
    pool.params = make_params(verification={"audit_rate": 0.5, "newcomer_submissions": 0})
    pool.blocks = lambda _: None
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.dispatch()
    assert (pool.submission(receipt_hash).audited, pool.submission(receipt_hash).judgements) == (None, [])
    assert pool.claim(0) is None


def test_dispatch__undrawn__needs_one_cheap_verdict(pool: FakePool):
    pool.params = make_params(verification={"audit_rate": 0.0, "newcomer_submissions": 0})
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.dispatch()
    assert len(pool.submission(receipt_hash).judgements) == 1
    pool.judge(receipt_hash, [(0, ACCEPT, {})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.ACCEPTED, False)


# -- the quorum


def test_tally__quorum_accepts__pays_the_units_that_it_counted(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, ACCEPT, {"units": 17}), (1, ACCEPT, {"units": 17})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.reason, row.units, row.receipt_units) == (SubmissionState.ACCEPTED, 0, 17, 20)
    assert row.evidence_hash == make_hash("evidence of 0")
    assert (pool.node("a").accepted, pool.node("a").strikes) == (1, 0)


def test_tally__quorum_rejects_hard__suspends_and_takes_back_leases(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    held = pool.lease("a")
    pool.judge(receipt_hash, [(0, REJECT, {}), (1, REJECT, {})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.reason, row.units) == (SubmissionState.REJECTED, Reason.PROOF, 0)
    assert pool.node("a").suspended == "rejected"
    assert {t.id: t.state for t in pool.tasks()}[held.id] is TaskState.EXPIRED
    with pool.database.read() as rows:
        assert [s.receipt_hash for s in rows.list_hard_rejections()] == [receipt_hash]


def test_tally__quorum_rejects_softly__is_void_and_a_strike(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(i, REJECT, {"reason": Reason.REWARD}) for i in (0, 1)])
    assert pool.submission(receipt_hash).state is SubmissionState.VOID
    assert (pool.node("a").strikes, pool.node("a").suspended) == (1, "")
    with pool.database.read() as rows:
        assert rows.list_hard_rejections() == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((ACCEPT, {}), (REJECT, {})),
        ((ACCEPT, {"units": 19}), (ACCEPT, {"units": 20})),
        ((REJECT, {"reason": Reason.PROOF}), (REJECT, {"reason": Reason.TOKEN_MARGIN})),
        ((UNKNOWN, {}), (ACCEPT, {})),
    ],
)
def test_tally__two_that_differ__ask_a_third_who_decides(submitted: tuple[FakePool, str], first, second):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, *first), (1, *second)])
    row = pool.submission(receipt_hash)
    assert (row.state, len(row.judgements)) == (SubmissionState.SUBMITTED, 3)
    pool.judge(receipt_hash, [(2, *second)])
    row = pool.submission(receipt_hash)
    assert row.state is (SubmissionState.ACCEPTED if second[0] is ACCEPT else SubmissionState.REJECTED)
    assert row.evidence_hash == make_hash("evidence of 1"), "of the first who said what was decided"


def test_tally__two_unknown__ask_two_more(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, UNKNOWN, {}), (1, UNKNOWN, {})])
    assert len(pool.submission(receipt_hash).judgements) == 4
    pool.judge(receipt_hash, [(2, ACCEPT, {}), (3, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def test_tally__no_quorum_in_twice_the_quorum__is_void_unslashed_and_ends(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, UNKNOWN, {}), (1, ACCEPT, {})])
    pool.judge(receipt_hash, [(2, REJECT, {})])
    pool.judge(receipt_hash, [(3, UNKNOWN, {})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.reason, row.units) == (SubmissionState.VOID, Reason.UNDECIDED, 0)
    assert row.evidence_hash == "0x" + "00" * 32
    assert (pool.node("a").strikes, pool.node("a").suspended) == (0, ""), "that nobody could check is no fault of it"
    assert pool.claim(4) is None


def test_tally__fewer_validators_than_judgements__ends_when_all_have_spoken(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.dispatch()
    pool.judge(receipt_hash, [(0, UNKNOWN, {}), (1, ACCEPT, {})])
    pool.judge(receipt_hash, [(2, REJECT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.VOID


def test_tally__one_liar_of_three__decides_nothing(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, REJECT, {}), (1, ACCEPT, {})])
    pool.judge(receipt_hash, [(2, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED
    assert pool.node("a").suspended == ""


def test_tally__twice__counts_once(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, ACCEPT, {}), (1, ACCEPT, {})])
    pool.dispatch()
    with pool.database.write() as rows:
        row = rows.get_submission(receipt_hash)
        assert judging.tally(rows, pool.params, row, validators=5, now=pool.now) is None
    assert pool.node("a").accepted == 1


# -- turns


def test_claim_judgement__same_validator__never_judges_twice(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    kind, judgement = pool.claim(0)
    assert kind == "judge"
    pool.commit(0, judgement, pool.build_verdict(0, receipt_hash, UNKNOWN))
    assert pool.claim(0) is None, "the other one is for another validator"
    assert pool.claim(1)[0] == "judge"


def test_claim_judgement__answer_lost__offers_the_same_on_the_same_clock(submitted: tuple[FakePool, str]):
    pool, _ = submitted
    first = pool.claim(0)
    pool.now += 20
    assert pool.claim(0) == first
    pool.now += 10
    pool.dispatch()
    kind, again = pool.claim(0)
    assert kind == "judge"
    assert again != first[1], "the turn lapsed; the validator may be asked anew"


def test_dispatch__silent_validator__lapses_and_another_is_asked(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    _, lost = pool.claim(0)
    pool.now += 30
    pool.dispatch()
    row = pool.submission(receipt_hash)
    assert [j.lapsed for j in row.judgements] == [True, False, False]
    verdict = pool.build_verdict(0, receipt_hash, ACCEPT)
    assert code_of(pool.commit, 0, lost, verdict) == "judgement_lapsed"
    pool.judge(receipt_hash, [(1, ACCEPT, {}), (2, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def test_dispatch__committed_and_waiting_for_a_slow_one__is_not_late(submitted: tuple[FakePool, str]):
    """The first may reveal only when the second has committed, which may be 60 s after its own claim."""
    pool, receipt_hash = submitted
    _, first = pool.claim(0)
    pool.commit(0, first, pool.build_verdict(0, receipt_hash, ACCEPT))
    pool.now += 29
    _, second = pool.claim(1)
    pool.now += 29
    pool.dispatch()
    assert [j.lapsed for j in pool.submission(receipt_hash).judgements] == [False, False]
    pool.commit(1, second, pool.build_verdict(1, receipt_hash, ACCEPT))
    pool.now += 29
    pool.dispatch()
    assert pool.claim(0) == ("reveal", first)
    pool.reveal(first)
    pool.reveal(second)
    pool.dispatch()
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def test_dispatch__committed_but_never_revealed__lapses_after_its_time(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    taken = [pool.claim(i)[1] for i in (0, 1)]
    for i, judgement in enumerate(taken):
        pool.commit(i, judgement, pool.build_verdict(i, receipt_hash, ACCEPT))
    pool.reveal(taken[0])
    pool.now += 30
    pool.dispatch()
    assert [j.lapsed for j in pool.submission(receipt_hash).judgements] == [False, True, False]
    pool.judge(receipt_hash, [(2, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def test_dispatch__others_lapse__who_waited_is_not_late_and_another_is_asked(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, UNKNOWN, {}), (1, UNKNOWN, {})])
    taken = [pool.claim(i)[1] for i in (2, 3)]
    pool.commit(2, taken[0], pool.build_verdict(2, receipt_hash, ACCEPT))
    pool.now += 30
    pool.dispatch()
    row = pool.submission(receipt_hash)
    assert [j.lapsed for j in row.judgements] == [False, False, False, True, False]
    assert pool.claim(2) is None
    kind, again = pool.claim(3)
    assert kind == "judge"
    pool.commit(3, again, pool.build_verdict(3, receipt_hash, ACCEPT))
    assert pool.claim(2) == ("reveal", taken[0])
    pool.reveal(taken[0])
    pool.reveal(again)
    pool.dispatch()
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def test_dispatch__three_validators_two_away__comes_to_an_end(database):
    """One has committed, the others never speak: turns are bounded, then the work is void and nobody is blamed."""
    pool = FakePool(database, validators=3)
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.dispatch()
    _, first = pool.claim(0)
    pool.commit(0, first, pool.build_verdict(0, receipt_hash, ACCEPT))
    for _ in range(40):
        pool.claim(1)
        pool.claim(2)
        pool.now += 30
        pool.dispatch()
    row = pool.submission(receipt_hash)
    assert (row.state, row.reason) == (SubmissionState.VOID, Reason.UNDECIDED)
    assert len(row.judgements) == judging.TURNS_FOR_ONE * pool.params.max_judgements
    assert pool.node("a").strikes == 0


def test_dispatch__one_of_three_paused__work_is_accepted_by_the_others(database):
    pool = FakePool(database, validators=3)
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.dispatch()
    pool.claim(0)  # and is never heard of again
    _, second = pool.claim(1)
    pool.commit(1, second, pool.build_verdict(1, receipt_hash, ACCEPT))
    pool.now += 30
    pool.dispatch()
    _, third = pool.claim(2)
    pool.commit(2, third, pool.build_verdict(2, receipt_hash, ACCEPT))
    for judgement in (second, third):
        pool.reveal(judgement)
    pool.dispatch()
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def test_dispatch__nobody_asks_for_work__turns_wait_and_nothing_is_void(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    for _ in range(50):
        pool.now += 60
        pool.dispatch()
    row = pool.submission(receipt_hash)
    assert row.state is SubmissionState.SUBMITTED
    assert [j.lapsed for j in row.judgements] == [False, False]


@pytest.mark.parametrize("reason", [Reason.PROOF, Reason.MALFORMED])
def test_tally__undrawn_and_one_reject__others_are_asked_with_a_replay(submitted: tuple[FakePool, str], reason: Reason):
    """One liar condemns nobody, nor does it make strikes."""
    pool, receipt_hash = submitted
    with pool.database.write() as rows:
        row = rows.get_submission(receipt_hash)
        row.audited = False
        for judgement in list(row.judgements):
            row.judgements.remove(judgement)
            rows.session.delete(judgement)
    pool.dispatch()
    pool.judge(receipt_hash, [(0, REJECT, {"reason": reason})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.SUBMITTED, True)
    assert (pool.node("a").strikes, pool.node("a").suspended) == (0, "")
    pool.dispatch()
    pool.judge(receipt_hash, [(1, ACCEPT, {})])
    pool.dispatch()
    pool.judge(receipt_hash, [(2, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED
    assert pool.node("a").strikes == 0


def test_tally__all_reject_for_different_reasons__is_void_and_a_strike(pool: FakePool):
    """Who stands where validators' numbers part is not slashed, and does not get away with it for ever."""
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.dispatch()
    reasons = (Reason.PROOF, Reason.TOKEN_MARGIN, Reason.LOGPROB)
    pool.judge(receipt_hash, [(i, REJECT, {"reason": reasons[i]}) for i in (0, 1)])
    pool.judge(receipt_hash, [(2, REJECT, {"reason": reasons[2]})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.reason, row.units) == (SubmissionState.VOID, Reason.UNDECIDED, 0)
    assert (pool.node("a").strikes, pool.node("a").suspended) == (1, "")
