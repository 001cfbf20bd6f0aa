"""One contract for every OutboxStore: the coordinator's tables and the file of trainer and validator."""

from collections.abc import Iterator

import pytest

from coordinator.db import Database
from coordinator.outbox import DatabaseOutbox, add_intent
from covey.chain.client import Call
from covey.chain.outbox import Attempt, Intent, IntentState, OutboxStore, SqliteOutbox
from covey.errors import ProtocolError
from tests.fakes.databases import empty
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit


def make_intent(key: str, value: int = 0) -> Intent:
    return Intent(key=key, call=Call(to=make_address("contract"), data=b"\x00\xff", value=value, label="Thing.do"))


def make_attempt(number: int) -> Attempt:
    return Attempt(hash=make_hash(f"tx {number}"), raw=bytes([2, number]), max_fee=2**62, priority_fee=1, signed_at=5)


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
    assert (entry.block_number, entry.transaction_hash, entry.reason) == (None, None, "")


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
    outbox.record_signed("a", 0, make_attempt(1))
    outbox.record_mined("d", 3, make_hash("tx"))
    assert [entry.intent.key for entry in outbox.list_pending()] == ["c", "a", "b"]


def test_record_signed__several__keeps_all_attempts_at_one_nonce(outbox: OutboxStore):
    outbox.put(make_intent("a"))
    assert outbox.get_next_nonce() == 0
    outbox.record_signed("a", 4, make_attempt(1))
    outbox.record_signed("a", 4, make_attempt(2))
    entry = outbox.find("a")
    assert (entry.state, entry.nonce, entry.attempts) == (IntentState.SIGNED, 4, (make_attempt(1), make_attempt(2)))
    assert outbox.get_next_nonce() == 5


def test_record_displaced__signed__needs_a_new_nonce_and_keeps_its_attempts(outbox: OutboxStore):
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 4, make_attempt(1))
    outbox.record_displaced("a")
    entry = outbox.find("a")
    assert (entry.state, entry.nonce, entry.attempts) == (IntentState.UNSENT, None, (make_attempt(1),))
    assert [e.intent.key for e in outbox.list_pending()] == ["a"]


def test_record_mined__intent__is_over_and_put_starts_nothing_again(outbox: OutboxStore):
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 0, make_attempt(1))
    outbox.record_mined("a", 9, make_attempt(1).hash)
    outbox.put(make_intent("a"))
    entry = outbox.find("a")
    assert (entry.state, entry.block_number, entry.transaction_hash) == (IntentState.MINED, 9, make_attempt(1).hash)
    assert outbox.list_pending() == []
    assert outbox.get_next_nonce() == 1


def test_record_reverted__unsigned__is_over_with_its_reason(outbox: OutboxStore):
    outbox.put(make_intent("a"))
    outbox.record_reverted("a", "NotOperator(1)", None)
    entry = outbox.find("a")
    assert (entry.state, entry.reason, entry.transaction_hash) == (IntentState.REVERTED, "NotOperator(1)", None)
    assert outbox.list_pending() == []


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
        DatabaseOutbox(database).record_signed("a", 0, make_attempt(1))
    assert caught.value.code == "unknown_intent"
