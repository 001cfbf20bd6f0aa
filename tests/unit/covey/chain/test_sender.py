"""The sender on a chain in memory that reorganises, loses transactions and lags. Every intent has its effect once."""

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.chain.json_rpc import Call
from covey.chain.outbox import Intent, IntentState
from covey.chain.sender import Sender
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.errors import TransientError
from tests.fakes.chain import ACCOUNT, FakeWallet, MemoryChain

pytestmark = pytest.mark.unit

verbs = st.one_of(
    st.just(("put", ())),
    st.just(("work", ())),
    st.tuples(st.just("pump"), st.tuples(st.integers(1, 3))),
    st.tuples(st.just("mine"), st.tuples(st.integers(1, 7))),
    st.tuples(st.just("reorganise"), st.tuples(st.integers(1, 12), st.integers(0, 14), st.booleans())),
    st.just(("forget", ())),
    st.just(("owner", ())),
    st.tuples(st.just("lag"), st.tuples(st.integers(0, 3), st.integers(0, 3))),
)


class Life:
    """One outbox on one chain."""

    def __init__(self) -> None:
        self.chain, self.store, self.keys = MemoryChain(), SqliteOutbox(":memory:"), list[str]()
        self.sender = Sender(
            self.chain, FakeWallet(), self.store, chain_id=1, stuck_seconds=5, lag_seconds=5, watch_seconds=0.0
        )

    def put(self) -> None:
        key = f"intent-{len(self.keys)}"
        self.keys.append(key)
        self.store.put(Intent(key=key, call=Call(to=ACCOUNT, data=key.encode(), label=key)))

    def pump(self, times: int) -> None:
        """Pump, and go on after a refusal as a role's loop does."""
        for _ in range(times):
            with suppress(TransientError):  # The node does not show yet that it has mined the transaction.
                self.sender.pump()

    def work(self) -> None:
        """Add an intent, mine it, and let the sender notice."""
        self.put()
        self.pump(1)
        self.chain.mine()
        self.pump(1)

    def live(self, verb: str, values: tuple[int, ...]) -> None:
        chain = self.chain
        if verb == "reorganise":
            depth, length, returned = values
            chain.reorganise(depth, length=length, returned=bool(returned))
        elif verb == "lag":
            chain.lag, chain.receipt_lag = values
        elif verb == "owner":
            chain.send_by_owner()
        elif verb == "forget":
            chain.forget_pool()
        else:
            {"put": self.put, "work": self.work, "pump": self.pump, "mine": chain.mine}[verb](*values)

    def come_to_rest(self) -> None:
        """Mine blocks without any further reorganisation, until everything is settled."""
        self.chain.lag = self.chain.receipt_lag = 0
        for _ in range(20 + 14 * len(self.keys)):
            self.pump(1)
            self.chain.mine()
        self.sender.pump()


@settings(max_examples=60, deadline=None)
@given(st.lists(verbs, min_size=15, max_size=40), st.sampled_from([None, "words that Covey does not know"]))
def test_pump__any_reorganisations_losses_and_lags__each_effect_happens_once(script, wording):
    life = Life()
    life.chain.wording = wording
    for verb, values in script:
        life.live(verb, values)
    life.come_to_rest()
    effects = Counter(life.chain.list_effects())
    assert {key: effects[key] for key in life.keys} == dict.fromkeys(life.keys, 1)
    for key in life.keys:
        entry = life.store.find(key)
        assert entry.state is IntentState.MINED
        assert entry.place.block_hash == life.chain.get_block(entry.place.block_number).hash
    life.store.close()


def test_pump__nonce_used_by_the_owner_and_refused_in_unknown_words__gets_a_new_nonce():
    life = Life()
    life.put()
    life.pump(1)
    life.chain.pool.clear()
    life.chain.send_by_owner()
    life.chain.mine()
    life.chain.wording = "words that Covey does not know"
    life.sender.pump()
    life.chain.mine(6)
    life.come_to_rest()
    assert life.chain.list_effects() == ["owner", "intent-0"]
    life.store.close()


def test_pump__nonce_vanishes_again_at_the_same_fees__is_filled_by_another_transaction():
    """The first filler lost its nonce to a transaction of the owner, which a second reorganisation also drops."""
    life = Life()
    life.chain.send_by_owner()
    life.chain.mine()
    life.work()
    for _ in range(2):
        lose_all(life)
        live_on(life, 10)
        assert len(effects := life.chain.list_effects()) > 1
        assert "owner" not in effects
        lose_all(life)
        life.chain.send_by_owner()
        live_on(life, 10)
        assert life.chain.list_effects()[0] == "owner"
    life.come_to_rest()
    assert Counter(life.chain.list_effects())["intent-0"] == 1
    life.store.close()


def lose_all(life: Life) -> None:
    """Replace all blocks by empty ones and add six more, so that no node has any transaction."""
    length = len(life.chain.blocks) + 6
    life.chain.reorganise(length, length=length, returned=False)
    life.chain.pool.clear()


def live_on(life: Life, blocks: int) -> None:
    for _ in range(blocks):
        life.pump(1)
        life.chain.mine()
    life.pump(1)
