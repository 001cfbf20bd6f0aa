"""The sender on a real chain whose blocks are removed: each effect happens once, and final effects stay."""

import pytest

from covey.chain.finality import KEPT_BLOCKS
from covey.chain.json_rpc import ChainClient
from covey.chain.outbox import IntentState
from tests.integration.chain.sending import balance, drain, make_sender, mine, mint, put

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("depth", [1, 5])
def test_pump__blocks_reorganised_away__all_are_sent_again_with_their_nonces_and_happen_once(chain, store, depth):
    before = balance(chain)
    mine(chain, 3)
    sender = make_sender(chain, store)
    for key, amount in (("a", 5), ("b", 2), ("c", 1)):
        put(store, key, mint(chain, amount))
        drain(sender)
    nonces = [store.find(key).nonce for key in "abc"]
    chain.client.request("anvil_reorg", depth, [])
    put(store, "d", mint(chain, 10))
    assert balance(chain) == before + (7 if depth == 1 else 0)
    drain(sender)
    assert balance(chain) == before + 18
    assert [store.find(key).nonce for key in "abcd"] == [*nonces, nonces[-1] + 1]
    assert [len(store.find(key).attempts) for key in "abc"] == [1, 1, 1], "sent again unchanged"
    assert [store.find(key).state for key in "abcd"] == [IntentState.MINED] * 4


def test_pump__transaction_is_in_another_block_after_a_reorganisation__is_recorded_there(chain, store):
    before = balance(chain)
    put(store, "a", mint(chain, 5))
    sender = make_sender(chain, store)
    drain(sender)
    first = store.find("a")
    raw = "0x" + first.attempts[0].raw.hex()
    mine(chain)
    chain.client.request("anvil_reorg", 2, [[raw, 1]])
    sender.pump()
    entry = store.find("a")
    assert (entry.state, entry.nonce, entry.attempts) == (IntentState.MINED, first.nonce, first.attempts)
    assert entry.place.block_number == first.place.block_number + 1
    assert entry.place.block_hash == chain.client.get_block(entry.place.block_number).hash
    assert balance(chain) == before + 5


def test_pump__owners_own_transaction_vanished_below__its_nonce_is_filled(chain, store):
    """Its nonce is lower than the intent's, so the intent cannot be mined before the gap is filled."""
    before = balance(chain)
    mine(chain)
    chain.send("deployer", mint(chain, 7))
    put(store, "a", mint(chain, 5))
    sender = make_sender(chain, store)
    drain(sender)
    nonce = store.find("a").nonce
    chain.client.request("anvil_reorg", 2, [])
    assert balance(chain) == before
    for _ in range(8):
        sender.pump()
        chain.advance(1)
    drain(sender)
    assert balance(chain) == before + 5
    assert store.find("a").nonce == nonce
    assert chain.client.count_transactions(chain.address("deployer")) == nonce + 1


def test_pump__deep_below_the_head__is_final(chain, store):
    put(store, "a", mint(chain, 5))
    sender = make_sender(chain, store)
    drain(sender)
    chain.client.request("anvil_mine", hex(KEPT_BLOCKS - 1))
    sender.pump()
    assert [entry.intent.key for entry in store.list_provisional()] == ["a"]
    mine(chain)
    sender.pump()
    assert store.list_provisional() == []


def test_pump__final_by_the_node__is_waited_for(chain, store):
    class Unfinalized(ChainClient):
        def find_block(self, tag):
            return super().find_block(0 if tag == "finalized" else tag)

    put(store, "a", mint(chain, 5))
    client = Unfinalized(chain.client.rpc_url)
    sender = make_sender(chain, store, client=client, finality="finalized")
    drain(sender)
    chain.client.request("anvil_mine", hex(KEPT_BLOCKS))
    sender.pump()
    assert [entry.intent.key for entry in store.list_provisional()] == ["a"]
    make_sender(chain, store, finality="finalized").pump()
    assert store.list_provisional() == []
