"""One contract for every OutboxStore: the coordinator's tables and the file of trainer and validator."""

from collections.abc import Iterator

import pytest

from coordinator.db.database import Database
from coordinator.db.database_outbox import DatabaseOutbox, add_intent
from covey.chain.json_rpc import Call
from covey.chain.outbox import Attempt, Intent, IntentState, OutboxStore, Place, Refusal
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.errors import ProtocolError
from tests.fakes.databases import empty
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit


def make_intent(key: str, value: int = 0) -> Intent:
    return Intent(key=key, call=Call(to=make_address("contract"), data=b"\x00\xff", value=value, label="Thing.do"))


def make_attempt(number: int) -> Attempt:
    return Attempt(hash=make_hash(f"tx {number}"), raw=bytes([2, number]), max_fee=2**62, priority_fee=1)


def make_place(block: int, number: int = 1) -> Place:
    """The place of an attempt of this number."""
    return Place(block_number=block, block_hash=make_hash(f"{block}"), transaction_hash=make_attempt(number).hash)


@pytest.fixture(params=["file", "sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def outbox(request: pytest.FixtureRequest) -> Iterator[OutboxStore]:
    if request.param == "file":
        store = SqliteOutbox(":memory:")
        yield store
        store.close()
        return

    database: Database = request.getfixturevalue(request.param)
    empty(database)
    yield DatabaseOutbox(database)


def test_put__twice__is_once_with_every_value_kept(outbox: OutboxStore):
    outbox.put(make_intent("a", 2**255))
    outbox.put(make_intent("a", 2**255))
    (entry,) = outbox.list_pending()
    assert entry.intent == make_intent("a", 2**255)
    assert (entry.state, entry.nonce, entry.attempts) == (IntentState.UNSENT, None, ())
    assert (entry.place, entry.offered_at, entry.refusal, entry.reason) == (None, None, None, "")


def test_put__same_key_for_another_call__is_refused(outbox: OutboxStore):
    outbox.put(make_intent("a", 1))
    with pytest.raises(ProtocolError) as caught:
        outbox.put(make_intent("a", 2))
    assert caught.value.code == "intent_conflict"
    assert outbox.find("a").intent == make_intent("a", 1)


def test_find__unknown__is_none(outbox: OutboxStore):
    assert outbox.find("a") is None


def test_list_pending__several__stand_in_the_order_of_put(outbox: OutboxStore):
    for key in "cabd":
        outbox.put(make_intent(key))
    outbox.record_signed("a", 0, make_attempt(1), offered_at=5)
    outbox.record_mined("d", make_place(3))
    assert [entry.intent.key for entry in outbox.list_pending()] == ["c", "a", "b"]


def test_record_signed__several__keeps_all_attempts_at_one_nonce(outbox: OutboxStore):
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 4, make_attempt(1), offered_at=5)
    outbox.record_signed("a", 4, make_attempt(2), offered_at=11)
    entry = outbox.find("a")
    assert (entry.state, entry.nonce, entry.attempts) == (IntentState.SIGNED, 4, (make_attempt(1), make_attempt(2)))
    assert entry.offered_at == 11
    assert outbox.list_nonces() == {4}


def test_list_signed_since__signed_at_a_block_or_later__are_listed_in_any_state(outbox: OutboxStore):
    for i, key in enumerate("abcd"):
        outbox.put(make_intent(key))
        if key != "d":
            outbox.record_signed(key, i, make_attempt(i), offered_at=4 + i)
    outbox.record_mined("c", make_place(1))
    assert [entry.intent.key for entry in outbox.list_signed_since(5)] == ["b", "c"]


def test_record_displaced__signed__needs_a_new_nonce_and_keeps_its_attempts(outbox: OutboxStore):
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 4, make_attempt(1), offered_at=5)
    outbox.record_displaced("a")
    entry = outbox.find("a")
    assert (entry.state, entry.nonce, entry.attempts) == (IntentState.UNSENT, None, (make_attempt(1),))
    assert [e.intent.key for e in outbox.list_pending()] == ["a"]


def test_record_signed__the_same_again_after_it_was_displaced__is_the_newest_attempt(outbox: OutboxStore):
    """A reorganization gave its nonce back, and the fees are as they were."""
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 4, make_attempt(1), offered_at=5)
    outbox.record_displaced("a")
    outbox.record_signed("a", 6, make_attempt(2), offered_at=7)
    outbox.record_displaced("a")
    outbox.record_signed("a", 4, make_attempt(1), offered_at=9)
    entry = outbox.find("a")
    assert (entry.nonce, entry.attempts) == (4, (make_attempt(2), make_attempt(1)))


def test_record_mined__intent__is_over_and_put_starts_nothing_again(outbox: OutboxStore):
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 0, make_attempt(1), offered_at=5)
    outbox.record_mined("a", make_place(9))
    outbox.put(make_intent("a"))
    entry = outbox.find("a")
    assert (entry.state, entry.place, entry.nonce) == (IntentState.MINED, make_place(9), 0)
    assert outbox.list_pending() == []


def test_record_reverted__unsigned__is_over_with_its_reason(outbox: OutboxStore):
    outbox.put(make_intent("a"))
    outbox.record_reverted("a", "NotOperator(1)", None)
    entry = outbox.find("a")
    assert (entry.state, entry.reason, entry.transaction_hash) == (IntentState.REVERTED, "NotOperator(1)", None)
    assert (outbox.list_pending(), outbox.list_provisional()) == ([], [])


def test_record_refused__several_times__stays_unsent_and_is_forgotten_once_it_is_signed(outbox: OutboxStore):
    outbox.put(make_intent("a"))
    refusal = Refusal(first_at=7, last_at=9, heads=2)
    outbox.record_refused("a", Refusal.at(7), "TooEarly()")
    outbox.record_refused("a", refusal, "WindowOpen(5)")
    (entry,) = outbox.list_pending()
    assert (entry.state, entry.refusal, entry.reason) == (IntentState.UNSENT, refusal, "WindowOpen(5)")
    outbox.record_signed("a", 0, make_attempt(1), offered_at=9)
    entry = outbox.find("a")
    assert (entry.state, entry.refusal, entry.reason) == (IntentState.SIGNED, None, "")


@pytest.mark.parametrize("is_success", [True, False])
def test_record_dropped__mined_or_reverted__is_signed_again_with_its_nonce(outbox: OutboxStore, is_success: bool):
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 4, make_attempt(1), offered_at=5)
    if is_success:
        outbox.record_mined("a", make_place(9))
    else:
        outbox.record_reverted("a", "EpochTooEarly(1)", make_place(9))
    assert [(e.intent.key, e.place) for e in outbox.list_provisional()] == [("a", make_place(9))]
    assert (outbox.list_pending(), outbox.list_nonces()) == ([], {4})
    outbox.record_dropped("a", offered_at=12)
    (entry,) = outbox.list_pending()
    assert (entry.state, entry.nonce, entry.attempts) == (IntentState.SIGNED, 4, (make_attempt(1),))
    assert (entry.place, entry.offered_at, entry.reason) == (None, 12, "")
    assert outbox.list_provisional() == []


def test_record_final__some_blocks__are_not_looked_at_any_more(outbox: OutboxStore):
    for number, key in enumerate("abc"):
        outbox.put(make_intent(key))
        outbox.record_signed(key, number, make_attempt(number), offered_at=5)
    outbox.record_mined("a", make_place(9, 0))
    outbox.record_mined("b", make_place(10, 1))
    outbox.record_final(9)
    assert [e.intent.key for e in outbox.list_provisional()] == ["b"]
    assert outbox.list_nonces() == {1, 2}
    assert outbox.find("a").place == make_place(9, 0)


# -- only the coordinator's: an intent commits with the state that wants it


def test_add_intent__transaction_that_fails__leaves_neither_state_nor_intent(database: Database):
    def fail() -> None:
        with database.write() as rows:
            rows.set_fact("lease", 7)
            add_intent(rows, key="a", call=make_intent("a").call)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert DatabaseOutbox(database).find("a") is None
    with database.read() as rows:
        assert rows.get_fact("lease") == 0


def test_record_signed__unknown_intent__is_refused(database: Database):
    with pytest.raises(ProtocolError) as caught:
        DatabaseOutbox(database).record_signed("a", 0, make_attempt(1), offered_at=5)
    assert caught.value.code == "unknown_intent"
