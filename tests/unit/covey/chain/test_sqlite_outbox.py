import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from covey.chain.json_rpc import Call
from covey.chain.outbox import Attempt, Intent, IntentState, Place
from covey.chain.sqlite_outbox import SCHEMA_VERSION, SqliteOutbox
from covey.errors import OperatorError, ProtocolError
from tests.conftest import IS_FULL

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"


def make_intent(key: str, value: int = 0) -> Intent:
    return Intent(key=key, call=Call(to=ALICE, data=b"\x01\x02", value=value, label="Thing.do"))


def make_attempt(number: int) -> Attempt:
    return Attempt(hash=f"0x{number:064x}", raw=bytes([2, number % 256]), max_fee=10, priority_fee=1)


def make_place(number: int, block: int = 9) -> Place:
    """Return the place of the attempt with this number."""
    return Place(block_number=block, block_hash=f"0x{block:064x}", transaction_hash=make_attempt(number).hash)


@pytest.fixture
def outbox() -> Iterator[SqliteOutbox]:
    store = SqliteOutbox(":memory:")
    yield store
    store.close()


def test_put__same_intent_twice__is_stored_once(outbox):
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


def test_put__intent_is_already_mined__changes_nothing(outbox):
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 0, make_attempt(1), offered_at=5)
    outbox.record_mined("a", make_place(1))
    outbox.put(make_intent("a"))
    assert outbox.list_pending() == []
    assert outbox.find("a").state is IntentState.MINED


def test_record_signed__several_times__keeps_all_attempts_with_one_nonce(outbox):
    outbox.put(make_intent("a"))
    outbox.record_signed("a", 4, make_attempt(1), offered_at=5)
    outbox.record_signed("a", 4, make_attempt(2), offered_at=5)
    entry = outbox.find("a")
    assert (entry.state, entry.nonce) == (IntentState.SIGNED, 4)
    assert entry.attempts == (make_attempt(1), make_attempt(2))
    assert outbox.list_nonces() == {4}


def test_list_signed_since__signed_at_a_block_or_later__are_listed_in_any_state(outbox):
    for i, key in enumerate("abcd"):
        outbox.put(make_intent(key))
        if key != "d":
            outbox.record_signed(key, i, make_attempt(i), offered_at=4 + i)
    outbox.record_mined("c", make_place(1))
    assert [entry.intent.key for entry in outbox.list_signed_since(5)] == ["b", "c"]


def test_record_signed__hash_of_another_intent__is_refused_as_a_whole(outbox):
    outbox.put(make_intent("a"))
    outbox.put(make_intent("b"))
    outbox.record_signed("a", 4, make_attempt(1), offered_at=5)
    with pytest.raises(sqlite3.IntegrityError):
        outbox.record_signed("b", 5, make_attempt(1), offered_at=5)
    assert outbox.find("b").state is IntentState.UNSENT


def test_record_reverted__before_or_in_a_block__is_terminal_with_its_reason(outbox):
    outbox.put(make_intent("a"))
    outbox.record_reverted("a", "NotTrainer(1)", None)
    entry = outbox.find("a")
    assert (entry.state, entry.reason, entry.transaction_hash) == (IntentState.REVERTED, "NotTrainer(1)", None)
    assert outbox.list_pending() == []
    assert outbox.list_nonces() == set()


def test_list_pending__several_intents__are_in_the_order_of_put(outbox):
    for key in "cab":
        outbox.put(make_intent(key))
    outbox.record_signed("a", 0, make_attempt(1), offered_at=5)
    assert [entry.intent.key for entry in outbox.list_pending()] == ["c", "a", "b"]


def test_find__unknown__is_none(outbox):
    assert outbox.find("a") is None


def test_reopened__file__contains_all_entries(tmp_path: Path):
    store = SqliteOutbox(tmp_path / "outbox.db")
    store.put(make_intent("a", 3))
    store.record_signed("a", 7, make_attempt(1), offered_at=5)
    store.record_mined("a", make_place(1, 12))
    store.put(make_intent("b"))
    store.close()
    again = SqliteOutbox(tmp_path / "outbox.db")
    entry = again.find("a")
    assert (entry.state, entry.nonce, entry.place) == (IntentState.MINED, 7, make_place(1, 12))
    assert [pending.intent.key for pending in again.list_pending()] == ["b"]
    again.close()


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1])
def test_open__file_of_another_version__is_refused_with_advice(tmp_path: Path, version: int):
    file = tmp_path / "outbox.sqlite3"
    with closing(sqlite3.connect(file)) as database:
        database.executescript(f"CREATE TABLE intents (key TEXT); PRAGMA user_version = {version};")
    with pytest.raises(OperatorError, match=f"has format {version}, .* reads only format {SCHEMA_VERSION}") as caught:
        SqliteOutbox(file)
    assert caught.value.code == "old_outbox"
    assert str(file) in caught.value.fix


class OutboxMachine(RuleBasedStateMachine):
    """Compares the store with a dictionary while blocks are added and removed."""

    def __init__(self) -> None:
        super().__init__()
        self.store = SqliteOutbox(":memory:")
        self.states: dict[str, IntentState] = {}
        self.nonces: dict[str, int] = {}
        self.places: dict[str, Place] = {}
        """Places of transactions in blocks that are not final, by key."""
        self.signed = 0
        self.block = 0

    def teardown(self) -> None:
        self.store.close()

    def pick(self, state: IntentState) -> str | None:
        return next((key for key, current in self.states.items() if current is state), None)

    @rule(key=st.sampled_from("abcdef"))
    def put(self, key: str) -> None:
        self.store.put(make_intent(key))
        self.states.setdefault(key, IntentState.UNSENT)

    @precondition(lambda self: self.pick(IntentState.UNSENT))
    @rule()
    def sign(self) -> None:
        key = self.pick(IntentState.UNSENT)
        self.signed += 1
        self.store.record_signed(key, self.signed, make_attempt(self.signed), offered_at=self.block)
        self.states[key], self.nonces[key] = IntentState.SIGNED, self.signed

    @precondition(lambda self: self.pick(IntentState.SIGNED))
    @rule(is_success=st.booleans())
    def mine(self, is_success: bool) -> None:
        key = self.pick(IntentState.SIGNED)
        self.block += 1
        place = make_place(len(self.store.find(key).attempts), self.block)
        if is_success:
            self.store.record_mined(key, place)
        else:
            self.store.record_reverted(key, "no", place)
        self.states[key], self.places[key] = (IntentState.MINED if is_success else IntentState.REVERTED), place

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.places)))
        self.store.record_dropped(key, offered_at=self.block)
        del self.places[key]
        self.states[key] = IntentState.SIGNED

    @precondition(lambda self: self.pick(IntentState.SIGNED))
    @rule()
    def displace(self) -> None:
        key = self.pick(IntentState.SIGNED)
        self.store.record_displaced(key)
        del self.nonces[key]
        self.states[key] = IntentState.UNSENT

    @rule(depth=st.integers(0, 3))
    def finish(self, depth: int) -> None:
        self.store.record_final(self.block - depth)
        self.places = {key: place for key, place in self.places.items() if place.block_number > self.block - depth}

    @invariant()
    def agrees(self) -> None:
        pending = [key for key, state in self.states.items() if state in (IntentState.UNSENT, IntentState.SIGNED)]
        assert [entry.intent.key for entry in self.store.list_pending()] == pending
        places = {entry.intent.key: entry.place for entry in self.store.list_provisional()}
        assert places == self.places
        reserved = {key for key, state in self.states.items() if state is IntentState.SIGNED} | self.places.keys()
        assert self.store.list_nonces() == {self.nonces[key] for key in reserved}


OutboxMachine.TestCase.settings = settings(max_examples=400 if IS_FULL else 30, stateful_step_count=25, deadline=None)
test_outbox__any_order_of_calls__agrees_with_a_dictionary = OutboxMachine.TestCase
