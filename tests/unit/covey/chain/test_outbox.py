import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from covey.chain.client import Call
from covey.chain.outbox import Attempt, Intent, IntentState, SqliteOutbox
from covey.errors import ProtocolError

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"


def make_intent(key: str, value: int = 0) -> Intent:
    return Intent(key=key, call=Call(to=ALICE, data=b"\x01\x02", value=value, label="Thing.do"))


def make_attempt(number: int) -> Attempt:
    return Attempt(hash=f"0x{number:064x}", raw=bytes([2, number % 256]), max_fee=10, priority_fee=1, signed_at=5)


@pytest.fixture
def outbox() -> Iterator[SqliteOutbox]:
    store = SqliteOutbox(":memory:")
    yield store
    store.close()


def test_put__twice_the_same__is_once(outbox):
    outbox.put(make_intent("a", 2**255))
    outbox.put(make_intent("a", 2**255))
    (entry,) = outbox.list_pending()
    assert entry.intent == make_intent("a", 2**255)
    assert (entry.state, entry.nonce, entry.attempts) == (IntentState.UNSENT, None, ())


def test_put__same_key_for_another_call__is_refused_and_changes_nothing(outbox):
    outbox.put(make_intent("a", 1))
    with pytest.raises(ProtocolError) as caught:
        outbox.put(make_intent("a", 2))
    assert caught.value.code == "intent_conflict"
    assert outbox.find("a").intent == make_intent("a", 1)


def test_put__after_the_end__starts_nothing_again(outbox):
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 0, make_attempt(1))
    outbox.record_mined("a", 9, make_attempt(1).hash)
    outbox.put(make_intent("a"))
    assert outbox.list_pending() == []
    assert outbox.find("a").state is IntentState.MINED


def test_record_signed__several__keeps_all_attempts_at_one_nonce(outbox):
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 4, make_attempt(1))
    outbox.record_signed("a", 4, make_attempt(2))
    entry = outbox.find("a")
    assert (entry.state, entry.nonce) == (IntentState.SIGNED, 4)
    assert entry.attempts == (make_attempt(1), make_attempt(2))
    assert outbox.get_next_nonce() == 5


def test_record_signed__hash_of_another_intent__is_refused_as_a_whole(outbox):
    outbox.put(make_intent("a"))
    outbox.put(make_intent("b"))
    outbox.record_signed("a", 4, make_attempt(1))
    with pytest.raises(sqlite3.IntegrityError):
        outbox.record_signed("b", 5, make_attempt(1))
    assert outbox.find("b").state is IntentState.UNSENT


def test_record_reverted__before_or_in_a_block__is_terminal_with_its_reason(outbox):
    outbox.put(make_intent("a"))
    outbox.record_reverted("a", "NotTrainer(1)", None)
    entry = outbox.find("a")
    assert (entry.state, entry.reason, entry.transaction_hash) == (IntentState.REVERTED, "NotTrainer(1)", None)
    assert outbox.list_pending() == []
    assert outbox.get_next_nonce() == 0


def test_list_pending__several__stand_in_the_order_of_put(outbox):
    for key in "cab":
        outbox.put(make_intent(key))
    outbox.record_signed("a", 0, make_attempt(1))
    assert [entry.intent.key for entry in outbox.list_pending()] == ["c", "a", "b"]


def test_find__unknown__is_none(outbox):
    assert outbox.find("a") is None


def test_reopened__file__holds_what_was_written(tmp_path: Path):
    store = SqliteOutbox(tmp_path / "outbox.db")
    store.put(make_intent("a", 3))
    store.record_signed("a", 7, make_attempt(1))
    store.record_mined("a", 12, make_attempt(1).hash)
    store.put(make_intent("b"))
    store.close()
    again = SqliteOutbox(tmp_path / "outbox.db")
    entry = again.find("a")
    assert (entry.state, entry.nonce, entry.block_number) == (IntentState.MINED, 7, 12)
    assert entry.transaction_hash == make_attempt(1).hash
    assert [pending.intent.key for pending in again.list_pending()] == ["b"]
    again.close()


class OutboxMachine(RuleBasedStateMachine):
    """The store against a dictionary that does the same."""

    def __init__(self) -> None:
        super().__init__()
        self.store = SqliteOutbox(":memory:")
        self.states: dict[str, IntentState] = {}
        self.nonces: dict[str, int] = {}
        self.signed = 0

    def teardown(self) -> None:
        self.store.close()

    def pick(self, state: IntentState) -> str | None:
        return next((key for key, held in self.states.items() if held is state), None)

    @rule(key=st.sampled_from("abcdef"))
    def put(self, key: str) -> None:
        self.store.put(make_intent(key))
        self.states.setdefault(key, IntentState.UNSENT)

    @precondition(lambda self: self.pick(IntentState.UNSENT))
    @rule()
    def sign(self) -> None:
        key = self.pick(IntentState.UNSENT)
        nonce = self.store.get_next_nonce()
        self.signed += 1
        self.store.record_signed(key, nonce, make_attempt(self.signed))
        self.states[key] = IntentState.SIGNED
        self.nonces[key] = nonce

    @precondition(lambda self: self.pick(IntentState.SIGNED))
    @rule(is_success=st.booleans())
    def mine(self, is_success: bool) -> None:
        key = self.pick(IntentState.SIGNED)
        transaction = self.store.find(key).attempts[-1].hash
        if is_success:
            self.store.record_mined(key, 3, transaction)
        else:
            self.store.record_reverted(key, "no", transaction)
        self.states[key] = IntentState.MINED if is_success else IntentState.REVERTED

    @invariant()
    def agrees(self) -> None:
        pending = [key for key, state in self.states.items() if not state.is_terminal]
        assert [entry.intent.key for entry in self.store.list_pending()] == pending
        assert sorted(self.nonces.values()) == list(range(len(self.nonces))), "no nonce twice, no gap"
        assert self.store.get_next_nonce() == len(self.nonces)


OutboxMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
test_outbox__any_order_of_calls__agrees_with_a_dictionary = OutboxMachine.TestCase
