"""Validators take turns, commit and reveal many at a time, and one that errs refuses only its own."""

from collections.abc import Sequence

import pytest

from coordinator.db.models import JudgementRow
from coordinator.domain import panel, turns
from coordinator.domain.turns import Commitment, Order, TurnQuery
from covey.errors import CoveyError
from covey.protocol import messages
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision
from tests.fakes.pool import FakePool, make_digest, make_hash, make_params

pytestmark = pytest.mark.unit
ACCEPT = Decision.ACCEPT


@pytest.fixture
def waiting(pool: FakePool) -> FakePool:
    """Return a pool with six submissions, each of which waits for one validator, whichever it is."""
    pool.params = make_params(
        quorum=1, groups_per_step=64, verification={"audit_rate": 0.0, "newcomer_submissions": 0, "confirm_rate": 0.0}
    )
    pool.register("a")
    pool.publish(0)
    for _ in range(6):
        pool.work("a")
    pool.dispatch()
    pool.ask(*range(len(pool.validators)))
    pool.now += 100 * pool.params.turn_seconds  # By now the turns are open to all.
    return pool


def get_turn(pool: FakePool, judgement: int) -> JudgementRow:
    with pool.database.read() as rows:
        found = rows.get_judgement(judgement)
        assert found is not None
        return found


def take(
    pool: FakePool, validator: int, *, free_turns: int, free_replays: int = 1, holding: Sequence[int] = ()
) -> list[Order]:
    with pool.database.write() as rows:
        query = TurnQuery(pool.validators[validator], pool.validators, holding, free_turns, free_replays)
        has_any = turns.has_order(rows, pool.params, query, now=pool.now)
        orders = turns.take_orders(rows, pool.params, query, now=pool.now)
        assert has_any == bool(orders)
        return orders


def commit(pool: FakePool, *commitments: tuple[int, int]) -> list[str]:
    """Commit the verdicts of (validator, turn) in one batch. Return the codes of the errors, "" for none."""
    items = []
    for validator, turn in commitments:
        with pool.database.read() as rows:
            found = rows.get_judgement(turn)
        about = found.receipt_hash if found else next(iter(pool_receipts(pool)))
        verdict = pool.build_verdict(validator, about, ACCEPT)
        salt = make_hash(f"salt {turn}")
        pool.reveals[turn] = (verdict, salt)
        commitment = messages.compute_commitment(make_digest(verdict), salt)
        items.append(Commitment(pool.validators[validator], turn, commitment))
    with pool.database.write() as rows:
        return list_codes(turns.record_commits(rows, pool.params, items, now=pool.now))


def reveal(pool: FakePool, *judgements: int) -> list[str]:
    items = []
    for judgement in judgements:
        verdict, salt = pool.reveals[judgement]
        items.append(
            turns.Reveal(
                judgement=judgement,
                verdict=verdict,
                digest=make_digest(verdict),
                salt=salt,
                signature="0x" + "00" * 65,
                live_groups=2,
                sums=None,
            )
        )
    with pool.database.write() as rows:
        return list_codes(turns.record_reveals(rows, pool.params, items, now=pool.now))


def list_codes(errors: Sequence[CoveyError | None]) -> list[str]:
    return ["" if error is None else error.code for error in errors]


def pool_receipts(pool: FakePool) -> list[str]:
    with pool.database.read() as rows:
        return [row.receipt_hash for row in rows.list_submissions(SubmissionState.SUBMITTED)]


def test_take_orders__room_for_several__takes_as_many_turns_at_once(waiting: FakePool):
    orders = take(waiting, 0, free_turns=4)
    assert [order.kind for order in orders] == ["judge"] * 4
    assert len({order.row.receipt_hash for order in orders}) == 4
    held = [order.turn.id for order in orders]
    assert {get_turn(waiting, each).validator for each in held} == {waiting.validators[0]}
    assert [order.turn.id for order in take(waiting, 0, free_turns=0)] == held, "it does not say that it holds them"
    assert len(take(waiting, 0, free_turns=4, holding=held)) == 2


def test_take_orders__many_validators_in_one_transaction__get_different_turns(waiting: FakePool):
    with waiting.database.write() as rows:
        queries = [TurnQuery(each, waiting.validators, (), 2) for each in waiting.validators[:3]]
        taken = [turns.take_orders(rows, waiting.params, query, now=waiting.now) for query in queries]
    assert [len(orders) for orders in taken] == [2, 2, 2]
    assert len({order.turn.id for orders in taken for order in orders}) == 6


@pytest.mark.parametrize("free_replays", [1, 2])
def test_take_orders__whole_replays__are_no_more_than_there_is_room_for(waiting: FakePool, free_replays: int):
    with waiting.database.write() as rows:
        for row in rows.list_submissions(SubmissionState.SUBMITTED):
            row.audited = True
            for turn in row.judgements:
                turn.full = True
    orders = take(waiting, 0, free_turns=4, free_replays=free_replays)
    assert [order.turn.full for order in orders] == [True] * free_replays


def test_take_orders__two_turns_of_one_submission__go_to_two_validators(pool: FakePool):
    pool.params = make_params()
    pool.register("a")
    pool.publish(0)
    pool.work("a")
    pool.dispatch()
    pool.ask(*range(len(pool.validators)))
    pool.now += 100 * pool.params.turn_seconds
    assert len(take(pool, 0, free_turns=4)) == 1
    assert len(take(pool, 1, free_turns=4)) == 1


def test_take_orders__hoarder__holds_a_bounded_number(waiting: FakePool):
    held: list[int] = []
    for _ in range(panel.MOST_HELD):
        waiting.work("a")
    waiting.dispatch()
    waiting.now += 100 * waiting.params.turn_seconds
    while orders := take(waiting, 0, free_turns=64, holding=held):
        held += [order.turn.id for order in orders]
    assert len(held) == panel.MOST_HELD


def test_take_orders__all_have_committed__are_to_be_revealed_before_new_turns(waiting: FakePool):
    held = [order.turn.id for order in take(waiting, 0, free_turns=3)]
    assert commit(waiting, *((0, each) for each in held)) == ["", "", ""]
    orders = take(waiting, 0, free_turns=2, holding=held)
    assert [(order.kind, order.turn.id) for order in orders[:3]] == [("reveal", each) for each in held]
    assert [order.kind for order in orders[3:]] == ["judge", "judge"]
    assert reveal(waiting, *held) == ["", "", ""]
    waiting.dispatch()
    states = [waiting.submission(order.row.receipt_hash).state for order in orders[:3]]
    assert states == [SubmissionState.ACCEPTED] * 3


def test_record_commits__one_of_many_is_wrong__only_that_is_refused(waiting: FakePool):
    mine = [order.turn.id for order in take(waiting, 0, free_turns=2)]
    theirs = [order.turn.id for order in take(waiting, 1, free_turns=1)]
    codes = commit(waiting, (0, mine[0]), (0, theirs[0]), (0, 10**9), (0, mine[1]), (1, theirs[0]))
    assert codes == ["", "not_your_judgement", "not_your_judgement", "", ""]
    assert all(get_turn(waiting, each).commitment for each in (*mine, *theirs))


def test_record_reveals__one_of_many_is_wrong__only_that_is_refused(waiting: FakePool):
    first, second = (order.turn.id for order in take(waiting, 0, free_turns=2))
    commit(waiting, (0, first), (0, second))
    verdict, _ = waiting.reveals[first]
    waiting.reveals[first] = (verdict, make_hash("another salt"))
    assert reveal(waiting, first, second) == ["commitment_mismatch", ""]
    assert (get_turn(waiting, first).verdict, get_turn(waiting, second).verdict is None) == (None, False)


def test_record_reveals__doubled_in_one_batch__is_the_same(waiting: FakePool):
    (turn,) = (order.turn.id for order in take(waiting, 0, free_turns=1))
    commit(waiting, (0, turn))
    assert reveal(waiting, turn, turn) == ["", ""]
