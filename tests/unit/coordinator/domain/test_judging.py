"""Verdicts are committed before any is shown, a quorum of equal outcomes decides, and everything ends."""

import pytest

from coordinator.domain import audit_draws, judging, nodes, panel
from coordinator.domain.panel import Ruling
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import FakePool, code_of, make_hash, make_params

pytestmark = pytest.mark.unit
ACCEPT, REJECT, UNKNOWN = Decision.ACCEPT, Decision.REJECT, Decision.UNKNOWN


def hand_in_proven(pool: FakePool, **verification: float) -> str:
    """A submission of a proven node that is not drawn for a replay."""
    rules = {"audit_rate": 0.0, "newcomer_submissions": 0, "confirm_rate": 0.0}
    pool.params = make_params(verification=rules | verification)
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.dispatch()
    return receipt_hash


def get_contradicted(pool: FakePool) -> list[int]:
    with pool.database.read() as rows:
        return [rows.require_validator(each).contradicted for each in pool.validators]


# -- what nobody replays


def test_dispatch__undrawn__needs_one_cheap_verdict(pool: FakePool):
    receipt_hash = hand_in_proven(pool)
    assert len(pool.submission(receipt_hash).turns) == 1
    pool.judge(receipt_hash, [(0, ACCEPT, {})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.ACCEPTED, False)


@pytest.mark.parametrize("units", [0, 19, 21])
def test_record_reveal__accept_with_other_units_than_the_receipts__is_refused(pool: FakePool, units: int):
    """One hostile validator had accepted undrawn work with no pay."""
    receipt_hash = hand_in_proven(pool)
    _, judgement = pool.claim(0)
    pool.commit(0, judgement, pool.build_verdict(0, receipt_hash, ACCEPT, units=units))
    assert code_of(pool.reveal, judgement) == "bad_verdict"


def test_tally__confirmed__two_validators_must_agree(pool: FakePool):
    receipt_hash = hand_in_proven(pool, confirm_rate=1.0)
    pool.judge(receipt_hash, [(0, ACCEPT, {}), (1, ACCEPT, {})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.ACCEPTED, False)


def test_tally__junk_that_one_accepts__a_second_one_finds_it_and_the_first_is_found_out(pool: FakePool):
    receipt_hash = hand_in_proven(pool, confirm_rate=1.0)
    junk = {"reason": Reason.MALFORMED}
    pool.judge(receipt_hash, [(0, ACCEPT, {}), (1, REJECT, junk)])
    row = pool.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.SUBMITTED, True), "a quorum looks, with a replay"
    pool.dispatch()
    pool.judge(receipt_hash, [(1, REJECT, junk), (2, REJECT, junk)])
    assert pool.submission(receipt_hash).state is SubmissionState.VOID
    assert get_contradicted(pool) == [1, 0, 0]


def test_tally__lone_liar_that_sees_a_second_validator__pays_for_not_revealing(pool: FakePool):
    receipt_hash = hand_in_proven(pool, confirm_rate=1.0)
    _, hidden = pool.claim(0)
    pool.commit(0, hidden, pool.build_verdict(0, receipt_hash, ACCEPT))
    _, second = pool.claim(1)
    pool.commit(1, second, pool.build_verdict(1, receipt_hash, REJECT, reason=Reason.MALFORMED))
    pool.reveal(second)
    pool.dispatch()
    pool.now += pool.params.judgement_seconds
    pool.dispatch()
    pool.judge(receipt_hash, [(i, REJECT, {"reason": Reason.MALFORMED}) for i in (1, 2)])
    assert pool.submission(receipt_hash).state is SubmissionState.VOID
    assert get_contradicted(pool) == [1, 0, 0]


def test_tally__cheap_accept_of_what_only_a_replay_finds__is_no_contradiction(pool: FakePool):
    receipt_hash = hand_in_proven(pool)
    with pool.database.write() as rows:
        row = rows.get_submission(receipt_hash)
        row.confirmed = True
    pool.dispatch()
    _, first = pool.claim(0)
    pool.commit(0, first, pool.build_verdict(0, receipt_hash, ACCEPT))
    _, second = pool.claim(1)
    pool.commit(1, second, pool.build_verdict(1, receipt_hash, REJECT, reason=Reason.MALFORMED))
    pool.reveal(first)
    pool.reveal(second)
    pool.dispatch()
    pool.dispatch()
    pool.judge(receipt_hash, [(0, REJECT, {}), (2, REJECT, {})])
    assert pool.submission(receipt_hash).reason == Reason.PROOF
    assert get_contradicted(pool) == [0, 0, 0]


@pytest.mark.parametrize("reason", [Reason.PROOF, Reason.MALFORMED])
def test_tally__undrawn_and_one_reject__all_are_asked_with_a_replay(pool: FakePool, reason: Reason):
    """One liar condemns nobody, nor does it make strikes; its cheap verdict does not count in the replay."""
    receipt_hash = hand_in_proven(pool)
    pool.judge(receipt_hash, [(0, REJECT, {"reason": reason})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.SUBMITTED, True)
    assert (pool.strikes("a"), pool.node("a").suspended) == (0, "")
    pool.dispatch()
    pool.judge(receipt_hash, [(1, ACCEPT, {}), (2, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED
    assert pool.strikes("a") == 0
    assert get_contradicted(pool) == [1, 0, 0]


def judge_pair(pool: FakePool, receipt_hash: str, first: Decision, second: Decision) -> None:
    """Let two validators judge, of which the second one reveals first, with a look between the two."""
    taken = []
    for validator, decision in enumerate((first, second)):
        _, judgement = pool.claim(validator)
        pool.commit(validator, judgement, pool.build_verdict(validator, receipt_hash, decision))
        taken.append(judgement)
    for judgement in reversed(taken):
        pool.reveal(judgement)
        pool.dispatch()


@pytest.mark.parametrize(
    ("rows", "naming", "contradicted"),
    [(3, {1, 2}, [1, 0, 0]), (3, {2}, [0, 0, 0]), (3, set(), [0, 0, 0]), (0, {1, 2}, [0, 0, 0])],
)
def test_tally__pair_disagrees_about_drawn_rows__the_one_that_accepted_is_contradicted_by_the_replay(
    pool: FakePool, rows: int, naming: set[int], contradicted: list[int]
):
    receipt_hash = hand_in_proven(pool, confirm_rate=1.0, audit_rows=rows)
    pool.naming_drawn = naming
    judge_pair(pool, receipt_hash, ACCEPT, REJECT)
    row = pool.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.SUBMITTED, True)
    pool.dispatch()
    pool.judge(receipt_hash, [(1, REJECT, {}), (2, REJECT, {})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.reason) == (SubmissionState.REJECTED, Reason.PROOF)
    assert get_contradicted(pool) == contradicted


def test_tally__pair_disagrees_and_the_replay_accepts__the_one_that_rejected_is_contradicted(pool: FakePool):
    receipt_hash = hand_in_proven(pool, confirm_rate=1.0)
    judge_pair(pool, receipt_hash, REJECT, ACCEPT)
    pool.dispatch()
    pool.judge(receipt_hash, [(1, ACCEPT, {}), (2, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED
    assert get_contradicted(pool) == [1, 0, 0]


def test_tally__pair_rejects__the_replay_waits_for_both_and_contradicts_neither(pool: FakePool):
    """The first reveal ordered the replay, and the other validator was taken to have accepted."""
    receipt_hash = hand_in_proven(pool, confirm_rate=1.0)
    judge_pair(pool, receipt_hash, REJECT, REJECT)
    assert pool.submission(receipt_hash).audited
    pool.dispatch()
    pool.judge(receipt_hash, [(0, REJECT, {}), (1, REJECT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.REJECTED
    assert get_contradicted(pool) == [0, 0, 0]


def test_tally__one_of_a_pair_withholds_its_verdict__one_rejection_never_decides(pool: FakePool):
    receipt_hash = hand_in_proven(pool)
    with pool.database.write() as rows:
        row = rows.get_submission(receipt_hash)
        row.confirmed = True
    pool.dispatch()
    taken = [pool.claim(i)[1] for i in (0, 1)]
    for validator, judgement in enumerate(taken):
        pool.commit(validator, judgement, pool.build_verdict(validator, receipt_hash, REJECT))
    pool.reveal(taken[0])
    with pool.database.write() as rows:
        row = rows.get_submission(receipt_hash)
        row.confirmed = False  # the quorum of a single validator
    pool.dispatch()
    row = pool.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.SUBMITTED, False)
    pool.now += pool.params.judgement_seconds
    pool.dispatch()
    row = pool.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.SUBMITTED, True)


def test_tally__pair_accepts_and_a_later_replay_rejects__nobody_is_contradicted(pool: FakePool):
    """The false rows may be others than the drawn ones."""
    receipt_hash = hand_in_proven(pool, confirm_rate=1.0)
    pool.judge(receipt_hash, [(0, ACCEPT, {}), (1, ACCEPT, {})])
    with pool.database.write() as rows:
        nodes.judge_again(rows, rows.get_submission(receipt_hash))
    pool.dispatch()
    pool.judge(receipt_hash, [(1, REJECT, {}), (2, REJECT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.REJECTED
    assert get_contradicted(pool) == [0, 0, 0]


def replay_after_a_lone_acceptance(pool: FakePool, **verdict: Reason) -> None:
    """Accept undrawn work by one validator, catch its contributor elsewhere, and let the quorum reject the work."""
    receipt_hash = hand_in_proven(pool)
    pool.judge(receipt_hash, [(0, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED
    with pool.database.write() as rows:
        row = rows.get_submission(receipt_hash)
        nodes.condemn(rows, node=rows.get_node(row.node), contributor=row.contributor, why=nodes.CASE)
    pool.dispatch()
    pool.judge(receipt_hash, [(1, REJECT, verdict), (2, REJECT, verdict)])
    assert pool.submission(receipt_hash).state is SubmissionState.REJECTED


@pytest.mark.parametrize(
    ("naming", "contradicted"), [({1, 2}, [1, 0, 0]), ({1}, [0, 0, 0]), ({0}, [0, 0, 0]), (set(), [0, 0, 0])]
)
def test_tally__lone_acceptance_of_a_drawn_row_that_a_later_quorum_rejects__is_contradicted(
    pool: FakePool, naming: set[int], contradicted: list[int]
):
    """One hostile validator of the quorum cannot contradict it: all must say that the drawn rows show it."""
    pool.naming_drawn = naming
    replay_after_a_lone_acceptance(pool)
    assert get_contradicted(pool) == contradicted
    with pool.database.read() as rows:
        assert (rows.require_validator(pool.validators[0]).failed_at > 0) == (contradicted[0] == 1)


def test_tally__lone_acceptance_of_rows_that_a_removed_block_drew__is_not_contradicted(pool: FakePool):
    """The block that replaces it draws other rows, and only these are named."""
    pool.naming_drawn = {1, 2}
    receipt_hash = hand_in_proven(pool)
    pool.judge(receipt_hash, [(0, ACCEPT, {})])
    with pool.database.write() as rows:
        judging.forget_draws_above(rows, block=rows.get_submission(receipt_hash).draw_block - 1)
    pool.dispatch()
    pool.judge(receipt_hash, [(1, REJECT, {}), (2, REJECT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.REJECTED
    assert get_contradicted(pool) == [0, 0, 0]


def test_tally__drawn_rows_are_unknown__another_validator_is_asked(pool: FakePool):
    receipt_hash = hand_in_proven(pool)
    pool.judge(receipt_hash, [(0, UNKNOWN, {})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.SUBMITTED, False)
    pool.judge(receipt_hash, [(1, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


@pytest.mark.parametrize("decision", [ACCEPT, REJECT])
@pytest.mark.parametrize("is_committed", [False, True])
def test_order_replay__cheap_turns_under_way__end_without_blame(pool: FakePool, is_committed: bool, decision: Decision):
    receipt_hash = hand_in_proven(pool)
    _, taken = pool.claim(0)
    if is_committed:
        pool.commit(0, taken, pool.build_verdict(0, receipt_hash, ACCEPT))
    with pool.database.write() as rows:
        panel.require_replay(rows.get_submission(receipt_hash))
    assert code_of(pool.commit, 0, taken, pool.build_verdict(0, receipt_hash, ACCEPT)) == "judgement_lapsed"
    pool.dispatch()
    assert [(j.full, j.lapsed) for j in pool.submission(receipt_hash).turns] == [
        (False, True),
        (True, False),
        (True, False),
    ]
    with pool.database.read() as rows:
        assert rows.require_validator(pool.validators[0]).lapsed == 0
    reason = {"reason": Reason.MALFORMED} if decision is REJECT else {}
    pool.judge(receipt_hash, [(0, decision, reason), (1, decision, reason)])
    state = SubmissionState.ACCEPTED if decision is ACCEPT else SubmissionState.VOID
    assert pool.submission(receipt_hash).state is state
    assert get_contradicted(pool) == [0, 0, 0]


# -- the quorum


def test_tally__quorum_accepts__pays_the_units_of_the_receipt(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, ACCEPT, {}), (1, ACCEPT, {})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.reason, row.units, row.receipt_units) == (SubmissionState.ACCEPTED, 0, 20, 20)
    assert row.evidence_hash == make_hash("evidence of 0")
    assert (pool.node("a").accepted, pool.strikes("a")) == (1, 0)


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
    assert (pool.strikes("a"), pool.node("a").suspended) == (1, "")
    with pool.database.read() as rows:
        assert rows.list_hard_rejections() == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((ACCEPT, {}), (REJECT, {})),
        ((REJECT, {"reason": Reason.PROOF}), (REJECT, {"reason": Reason.TOKEN_MARGIN})),
        ((UNKNOWN, {}), (ACCEPT, {})),
    ],
)
def test_tally__two_that_differ__ask_a_third_who_decides(submitted: tuple[FakePool, str], first, second):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, *first), (1, *second)])
    row = pool.submission(receipt_hash)
    assert (row.state, len(row.turns)) == (SubmissionState.SUBMITTED, 3)
    pool.judge(receipt_hash, [(2, *second)])
    row = pool.submission(receipt_hash)
    assert row.state is (SubmissionState.ACCEPTED if second[0] is ACCEPT else SubmissionState.REJECTED)
    assert row.evidence_hash == make_hash("evidence of 1"), "of the first who said what was decided"


def test_tally__two_unknown__ask_two_more(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, UNKNOWN, {}), (1, UNKNOWN, {})])
    assert len(pool.submission(receipt_hash).turns) == 4
    pool.judge(receipt_hash, [(2, ACCEPT, {}), (3, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def test_tally__no_quorum_in_twice_the_quorum__is_void_unslashed_and_ends(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, REJECT, {"reason": Reason.LOGPROB}), (1, ACCEPT, {})])
    pool.judge(receipt_hash, [(2, REJECT, {})])
    pool.judge(receipt_hash, [(3, REJECT, {"reason": Reason.TOKEN_MARGIN})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.reason, row.units) == (SubmissionState.VOID, Reason.UNDECIDED, 0)
    assert row.evidence_hash == "0x" + "00" * 32
    assert (pool.strikes("a"), pool.node("a").suspended) == (1, ""), "a quorum rejects, if for different reasons"
    assert pool.claim(4) is None


def test_tally__every_try_is_unknown__is_void_unslashed_after_as_many_as_verdicts(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, UNKNOWN, {}), (1, UNKNOWN, {})])
    pool.judge(receipt_hash, [(2, UNKNOWN, {}), (3, UNKNOWN, {})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.reason, row.units) == (SubmissionState.VOID, Reason.UNDECIDED, 0)
    assert (pool.strikes("a"), pool.node("a").suspended) == (0, ""), "that nobody could check is no fault of it"
    assert pool.claim(4) is None


@pytest.mark.parametrize("recovers", [True, False])
def test_tally__liar_and_failing_machine_of_three__do_not_void_honest_work_at_once(pool: FakePool, recovers: bool):
    """One that could not check spent its seat, so the work was void without blame for anybody."""
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.dispatch()
    pool.judge(receipt_hash, [(0, REJECT, {}), (1, UNKNOWN, {})])
    pool.judge(receipt_hash, [(2, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.SUBMITTED
    pool.judge(receipt_hash, [(1, ACCEPT if recovers else UNKNOWN, {})])
    state = SubmissionState.ACCEPTED if recovers else SubmissionState.VOID
    assert pool.submission(receipt_hash).state is state


@pytest.mark.parametrize(("seconds", "slow"), [(23.9, 0), (24.1, 1)])
def test_record_commit__in_the_last_fifth_of_the_time__is_counted(
    submitted: tuple[FakePool, str], seconds: float, slow: int
):
    pool, receipt_hash = submitted
    assert pool.params.judgement_seconds == 30
    _, turn = pool.claim(0)
    pool.now += seconds
    for _ in range(2):
        pool.commit(0, turn, pool.build_verdict(0, receipt_hash, ACCEPT))
    with pool.database.read() as rows:
        assert rows.require_validator(pool.validators[0]).slow == slow


def test_tally__one_liar_of_three__decides_nothing_and_is_counted(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, REJECT, {}), (1, ACCEPT, {})])
    pool.judge(receipt_hash, [(2, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED
    assert pool.node("a").suspended == ""
    assert get_contradicted(pool) == [1, 0, 0, 0, 0]


def test_dispatch__one_rejection_and_cheap_acceptances_in_one_look__those_are_replayed(pool: FakePool):
    """What is decided together is applied in order: an acceptance without a replay is dropped when a rejection of the
    same contributor, applied before it, orders the replay."""
    pool.params = make_params(verification={"audit_rate": 0.0, "newcomer_submissions": 0, "confirm_rate": 0.0})
    pool.register("a", owner="owner")
    pool.register("b", owner="owner")
    pool.publish(0)
    caught, cheap = pool.work("a"), pool.work("b")
    pool.dispatch()
    with pool.database.write() as rows:
        row = rows.get_submission(cheap)
        agreed = Ruling(ACCEPT, Reason.NONE, make_hash("evidence"))
        guilty = Ruling(REJECT, Reason.PROOF, make_hash("evidence"))
        first = rows.get_submission(caught)
        first.audited = True
        decided = [panel.Decided(first, guilty, replayed=True), panel.Decided(row, agreed, replayed=False)]
        findings = panel.Findings(decided, late=[], passed=[])
        judging.apply(rows, pool.params, findings, validators=pool.validators, now=pool.now)
    assert pool.submission(caught).decision is REJECT
    assert (pool.submission(cheap).decision, pool.submission(cheap).audited) == (None, True)
    assert pool.node("b").accepted == 0


def test_tally__twice__counts_once(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.judge(receipt_hash, [(0, ACCEPT, {}), (1, ACCEPT, {})])
    for _ in range(2):
        pool.dispatch()
    assert pool.node("a").accepted == 1


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
    assert (pool.strikes("a"), pool.node("a").suspended) == (1, "")


def test_dispatch__one_of_three_paused__work_is_accepted_by_the_others(pool: FakePool):
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


def test_take_turn__all_have_committed__is_to_be_revealed_although_its_poll_began_before(pool: FakePool):
    """The poll of a validator that still judges is open until then, and would end without an order."""
    receipt_hash = hand_in_proven(pool, audit_rate=1.0)
    turns = [pool.claim(number)[1] for number in range(pool.params.quorum)]
    for number, turn in enumerate(turns):
        pool.commit(number, turn, pool.build_verdict(number, receipt_hash, ACCEPT))
    assert pool.claim(0, holding=turns[:1]) == ("reveal", turns[0])


def test_dispatch__undecided_submission__says_when_to_look_again(pool: FakePool):
    """A submission without a draw waits for a block, and an open turn for its deadline."""
    pool.register("a", "b")
    pool.publish(0)
    receipt_hash = pool.work("a")

    def dispatch() -> float:
        with pool.database.write() as rows:
            row = rows.get_submission(receipt_hash)
            judging.dispatch(
                rows,
                pool.params,
                [row],
                validators=pool.validators,
                active=pool.validators,
                find_block=pool.find_block,
                secret=b"",
                now=pool.now,
            )
            return row.next_check_at

    find_block, pool.find_block = pool.find_block, lambda _: None
    assert dispatch() == pool.now + audit_draws.UNDRAWN_CHECK_SECONDS
    pool.find_block = find_block
    assert dispatch() == pool.now + judging.CHECK_SECONDS
    pool.params = pool.params.model_copy(update={"judgement_seconds": 5})
    assert pool.claim(0) is not None
    assert dispatch() == pool.now + 5
    with pool.database.read() as rows:
        assert rows.list_due(pool.now + 4.9, limit=9) == []
        assert rows.list_due(pool.now + 5, limit=9) == [receipt_hash]


# -- many turns


def test_find_order__own_turns_wait_for_others__are_not_read_until_they_can_be_revealed(pool: FakePool):
    """A validator that is ahead of the others had hundreds of such turns, and each of its polls read them all."""
    pool.params = make_params(groups_per_step=64)
    pool.register("a")
    pool.publish(0)
    works = [pool.work("a") for _ in range(6)]
    pool.dispatch()
    mine = []
    for _ in works:
        kind, judgement = pool.claim(0)
        pool.commit(0, judgement, pool.build_verdict(0, find_receipt(pool, judgement), ACCEPT))
        mine.append(judgement)
    assert list_ready(pool, 0) == []
    _, theirs = pool.claim(1)
    assert list_ready(pool, 0) == [], "the other one has taken its turn and not committed"
    receipt_hash = find_receipt(pool, theirs)
    pool.commit(1, theirs, pool.build_verdict(1, receipt_hash, ACCEPT))
    (ready,) = list_ready(pool, 0)
    assert find_receipt(pool, ready) == receipt_hash
    assert pool.claim(0) == ("reveal", ready)
    assert kind == "judge"


def find_receipt(pool: FakePool, judgement: int) -> str:
    with pool.database.read() as rows:
        return rows.get_judgement(judgement).receipt_hash


def list_ready(pool: FakePool, validator: int) -> list[int]:
    with pool.database.read() as rows:
        return [turn.id for turn, _ in rows.list_ready(pool.validators[validator], after=0, limit=100)]
