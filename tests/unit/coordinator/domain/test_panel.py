"""Who judges is drawn and not a matter of speed; turns that lapse cost their validators, never the node."""

from collections import Counter
from itertools import permutations

import pytest

from coordinator.domain import panel, turn_order
from covey.protocol.seeding import compute_turn_order
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import FakePool, code_of, make_address, make_hash, make_params

pytestmark = pytest.mark.unit
ACCEPT, REJECT, UNKNOWN = Decision.ACCEPT, Decision.REJECT, Decision.UNKNOWN


@pytest.fixture
def undrawn(pool: FakePool) -> FakePool:
    """Three validators; each submission of node a gets one validator's cheap checks."""
    pool.params = make_params(
        max_staleness=3,
        groups_per_step=64,
        verification={"audit_rate": 0.0, "newcomer_submissions": 0, "confirm_rate": 0.0},
    )
    pool.register("a")
    pool.publish(0)
    return pool


def get_order(pool: FakePool, receipt_hash: str) -> list[int]:
    """Validators in the drawn order."""
    drawn = compute_turn_order(receipt_hash, pool.submission(receipt_hash).draw, pool.validators)
    return [pool.validators.index(each) for each in drawn]


# -- the order


def test_compute_turn_order__300_receipts__all_orders_are_alike():
    names = [make_address(f"v{i}") for i in range(3)]
    orders = Counter(tuple(compute_turn_order(make_hash(f"r{i}"), make_hash("b"), names)) for i in range(300))
    assert set(orders) == set(permutations(names))
    assert all(25 < count < 80 for count in orders.values()), "50 each are expected"
    assert compute_turn_order(make_hash("r0"), make_hash("b"), names[::-1]) == compute_turn_order(
        make_hash("r0"), make_hash("b"), names
    )


def test_take_turn__one_asks_first_and_often__gets_no_more_than_its_share(undrawn: FakePool):
    won = Counter()
    for _ in range(12):
        receipt_hash = undrawn.work("a")
        undrawn.dispatch()
        undrawn.ask(0, 1, 2)
        fast = any(undrawn.claim(0) for _ in range(3))
        taker = 0 if fast else next(i for i in (1, 2) if undrawn.claim(i))
        assert taker == get_order(undrawn, receipt_hash)[0]
        won[taker] += 1
        undrawn.decide(receipt_hash)
    assert won[0] < 10, f"the fastest won {won[0]} of 12; 4 are expected"


def test_take_turn__drawn_validator_sleeps__the_next_one_may_take_it_after_turn_seconds(undrawn: FakePool):
    receipt_hash = undrawn.work("a")
    undrawn.dispatch()
    undrawn.ask(0, 1, 2)
    first, second, third = get_order(undrawn, receipt_hash)
    assert undrawn.claim(second) is None
    undrawn.now += undrawn.params.turn_seconds
    assert undrawn.claim(third) is None
    assert undrawn.claim(second)[0] == "judge"
    assert undrawn.claim(first) is None, "it is taken"


def test_take_turn__validator_that_is_away__delays_nobody(undrawn: FakePool):
    receipt_hash = undrawn.work("a")
    undrawn.dispatch()
    undrawn.ask(0, 1, 2)
    first, second, _ = get_order(undrawn, receipt_hash)
    undrawn.now += turn_order.AWAY_SECONDS + 1
    with undrawn.database.write() as rows:
        (turn,) = rows.get_submission(receipt_hash).turns
        turn.opened_at = undrawn.now
    assert undrawn.claim(second)[0] == "judge"
    assert undrawn.claim(first) is None


def test_take_turn__two_seats__are_the_first_two_of_the_order(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    pool.ask(*range(5))
    order = get_order(pool, receipt_hash)
    assert [pool.claim(i) is not None for i in order[::-1]] == [False, False, False, True, True]


def test_take_turn__same_validator__never_judges_twice(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    kind, judgement = pool.claim(0)
    assert kind == "judge"
    pool.commit(0, judgement, pool.build_verdict(0, receipt_hash, UNKNOWN))
    assert pool.claim(0) is None, "the other one is for another validator"
    assert pool.claim(1)[0] == "judge"


def test_take_turn__not_a_validator_of_the_pool__gets_none(submitted: tuple[FakePool, str]):
    pool, _ = submitted
    pool.validators.append(make_address("stranger"))
    assert pool.claim(5) is not None
    pool.validators = pool.validators[:5]
    pool.now += 10 * pool.params.turn_seconds
    assert [pool.claim(i) is not None for i in (0, 1)] == [True, False], "one turn is left"


# -- turns in hand


def test_take_turn__answer_lost__offers_the_same_on_the_same_clock(submitted: tuple[FakePool, str]):
    pool, _ = submitted
    first = pool.claim(0)
    pool.now += 20
    assert pool.claim(0) == first
    assert pool.claim(0, holding=[first[1]]) is None, "it works on it, and judges nothing twice"
    pool.now += 10
    pool.dispatch()
    kind, again = pool.claim(0)
    assert kind == "judge"
    assert again != first[1], "the turn lapsed; the validator may be asked again"


def test_take_turn__room_for_several__holds_as_many_as_it_says(undrawn: FakePool):
    for _ in range(3):
        undrawn.work("a")
    undrawn.dispatch()
    held: list[int] = []
    for _ in range(2):
        held.append(undrawn.claim(0, holding=held)[1])
    assert undrawn.claim(0, holding=held, free_turns=0) is None
    assert undrawn.claim(0, holding=held, free_turns=1)[1] not in held
    assert len(set(held)) == 2


def test_take_turn__hoarder__holds_a_bounded_number(undrawn: FakePool):
    for _ in range(panel.MAX_HELD + 2):
        undrawn.work("a")
    undrawn.dispatch()
    held: list[int] = []
    while (order := undrawn.claim(0, holding=held)) is not None:
        held.append(order[1])
    assert len(held) == panel.MAX_HELD


# -- turns that lapse


def test_dispatch__silent_validator__lapses_and_another_is_asked(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    _, lost = pool.claim(0)
    pool.now += 30
    pool.dispatch()
    row = pool.submission(receipt_hash)
    assert [j.lapsed for j in row.turns] == [True, False, False]
    verdict = pool.build_verdict(0, receipt_hash, ACCEPT)
    assert code_of(pool.commit, 0, lost, verdict) == "judgement_lapsed"
    pool.judge(receipt_hash, [(1, ACCEPT, {}), (2, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def get_validator(pool: FakePool, index: int) -> tuple[int, int]:
    """(lapsed, contradicted)."""
    with pool.database.read() as rows:
        row = rows.require_validator(pool.validators[index])
        return row.lapsed, row.contradicted


def test_dispatch__one_commits_and_never_reveals__others_decide_and_it_is_asked_last(undrawn: FakePool):
    """It had voided all honest work by taking every turn again, in eight minutes each."""
    decided = []
    for count in range(1, 9):
        receipt_hash = undrawn.work("a")
        undrawn.dispatch()
        order = undrawn.claim(0)
        if order is None:
            break
        undrawn.commit(0, order[1], undrawn.build_verdict(0, receipt_hash, ACCEPT))
        undrawn.now += undrawn.params.judgement_seconds
        undrawn.dispatch()
        undrawn.ask(1, 2)
        assert undrawn.claim(0) is None, "replaced at once"
        undrawn.judge(receipt_hash, [(next(i for i in get_order(undrawn, receipt_hash) if i), ACCEPT, {})])
        decided.append(undrawn.submission(receipt_hash).state)
        assert get_validator(undrawn, 0) == (count, 0)
        undrawn.ask(1, 2)
    assert decided == [SubmissionState.ACCEPTED], "with others awake, it gets no second turn"
    assert undrawn.strikes("a") == 0


def test_dispatch__validator_that_failed__is_asked_like_others_again_after_a_while(undrawn: FakePool):
    with undrawn.database.write() as rows:
        row = rows.require_validator(undrawn.validators[0])
        row.lapsed, row.failed_at = 1, undrawn.now
    receipt_hash = next(r for r in (undrawn.work("a") for _ in range(20)) if first_of(undrawn, r) == 0)
    undrawn.ask(1, 2)
    assert undrawn.claim(0, free_turns=1) is None or first_of(undrawn, receipt_hash) == 0
    undrawn.now += turn_order.UNRELIABLE_TURNS * undrawn.params.judgement_seconds
    undrawn.ask(0, 1, 2)
    assert undrawn.claim(0)[0] == "judge"


def first_of(pool: FakePool, receipt_hash: str) -> int:
    pool.dispatch()
    return get_order(pool, receipt_hash)[0]


def test_dispatch__committed_and_waiting_for_a_slow_one__is_not_late(submitted: tuple[FakePool, str]):
    """The first may reveal only when the second has committed, which may be 60 s after its own claim."""
    pool, receipt_hash = submitted
    _, first = pool.claim(0)
    pool.commit(0, first, pool.build_verdict(0, receipt_hash, ACCEPT))
    pool.now += 29
    _, second = pool.claim(1)
    pool.now += 29
    pool.dispatch()
    assert [j.lapsed for j in pool.submission(receipt_hash).turns] == [False, False]
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
    assert [j.lapsed for j in pool.submission(receipt_hash).turns] == [False, True, False]
    assert [get_validator(pool, i) for i in (0, 1)] == [(0, 0), (1, 0)]
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
    assert [j.lapsed for j in row.turns] == [False, False, False, True, False]
    assert pool.claim(2) is None
    kind, again = pool.claim(4)
    assert kind == "judge"
    pool.commit(4, again, pool.build_verdict(4, receipt_hash, ACCEPT))
    assert pool.claim(2) == ("reveal", taken[0])
    pool.reveal(taken[0])
    pool.reveal(again)
    pool.dispatch()
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def test_dispatch__three_validators_two_take_turns_and_let_them_lapse__comes_to_an_end(database):
    """One has committed, the others never speak: turns are bounded, then the work is void and the node not blamed."""
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
    lapses = Counter(j.validator for j in row.turns if j.lapsed and j.validator)
    first, *others = pool.validators
    assert lapses == {first: 1} | dict.fromkeys(others, turn_order.MAX_LAPSES)
    assert get_validator(pool, 0) == (0, 0), "it did its part"
    assert pool.strikes("a") == 0


def test_dispatch__nobody_asks_for_work__turns_wait_and_nothing_is_void(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    for _ in range(50):
        pool.now += 60
        pool.dispatch()
    row = pool.submission(receipt_hash)
    assert row.state is SubmissionState.SUBMITTED
    assert [j.lapsed for j in row.turns] == [False, False]


def accept_and_do_not_know(pool: FakePool, receipt_hash: str) -> None:
    """Of three validators, and a quorum of two, one accepts, one cannot tell, and the third never takes its turn."""
    pool.validators = pool.validators[:3]
    pool.dispatch()
    pool.now += 2 * pool.params.turn_seconds
    pool.judge(receipt_hash, [(0, ACCEPT, {}), (1, UNKNOWN, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.SUBMITTED


def test_dispatch__validator_that_never_takes_its_turn__decides_within_the_promise(pool: FakePool):
    """The submission waited for it for ever: the promised time passed, and the operator's bond paid for that."""
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.record(pool.build_receipt(pool.lease("a")), due_by=4050).message.receipt_hash
    accept_and_do_not_know(pool, receipt_hash)
    for now, state in ((3109, SubmissionState.SUBMITTED), (3110, SubmissionState.VOID)):
        pool.now = now
        pool.dispatch()
        assert pool.submission(receipt_hash).state is state, "940 s are left for the epoch and its transaction"
    assert (pool.submission(receipt_hash).reason, pool.strikes("a")) == (Reason.UNDECIDED, 0)


def test_dispatch__nothing_else_to_settle__decides_before_the_pool_is_overdue(pool: FakePool):
    """Without other work no epoch passes, and a promise is broken by time."""
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    accept_and_do_not_know(pool, receipt_hash)
    signed_at = pool.submission(receipt_hash).signed_at
    pool.now = signed_at + pool.params.receipt_seconds - 0.1
    pool.dispatch()
    assert pool.submission(receipt_hash).state is SubmissionState.SUBMITTED
    pool.now += 0.1
    pool.dispatch()
    assert pool.submission(receipt_hash).state is SubmissionState.VOID


def test_dispatch__confirmed_in_a_pool_of_one_validator__one_verdict_decides(pool: FakePool):
    """Two are out of reach there, and honest work was void."""
    rules = {"audit_rate": 0.0, "newcomer_submissions": 0, "confirm_rate": 1.0}
    pool.params, pool.validators = make_params(quorum=1, verification=rules), pool.validators[:1]
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    pool.dispatch()
    pool.judge(receipt_hash, [(0, ACCEPT, {})])
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def test_take_turn__drawn_validator_is_busy__another_one_does_not_decide_alone(undrawn: FakePool):
    """Under load all turns wait: one that took them at once, without a check, would decide about nearly all work."""
    receipt_hash = undrawn.work("a")
    undrawn.dispatch()
    undrawn.ask(0, 1, 2)
    first, second, third = get_order(undrawn, receipt_hash)
    undrawn.now += undrawn.params.turn_seconds
    _, taken = undrawn.claim(second)
    undrawn.commit(second, taken, undrawn.build_verdict(second, receipt_hash, ACCEPT))
    assert code_of(undrawn.reveal, taken) == "not_yet"
    undrawn.dispatch()
    assert undrawn.claim(third) is None, "the second seat is the drawn one's"
    _, confirming = undrawn.claim(first)
    undrawn.commit(first, confirming, undrawn.build_verdict(first, receipt_hash, REJECT))
    for judgement in (taken, confirming):
        undrawn.reveal(judgement)
    undrawn.dispatch()
    row = undrawn.submission(receipt_hash)
    assert (row.state, row.audited) == (SubmissionState.SUBMITTED, True)


def test_take_turn__drawn_validator_is_away__the_next_one_decides_alone(undrawn: FakePool):
    receipt_hash = undrawn.work("a")
    undrawn.dispatch()
    _, second, third = get_order(undrawn, receipt_hash)
    undrawn.ask(second, third)
    undrawn.judge(receipt_hash, [(second, ACCEPT, {})])
    assert undrawn.submission(receipt_hash).state is SubmissionState.ACCEPTED
