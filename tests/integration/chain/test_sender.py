"""The sender on a real chain: crashes at every call, stuck and foreign transactions, and refusals."""

import contextlib
import itertools
from pathlib import Path

import pytest

from covey.chain.finality import REFUSED_SECONDS
from covey.chain.json_rpc import ChainClient
from covey.chain.outbox import IntentState
from covey.chain.sender import Sender
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from tests.fakes.lagging import LaggingClient
from tests.integration.chain.sending import balance, drain, make_sender, mine, mint, pump_until_mined, put, stop_mining

pytestmark = pytest.mark.integration


class Crash(Exception):
    """Ends the process at this point."""


class Fuse:
    """Counts calls and ends the process at one of them, before or after the call's effect."""

    def __init__(self, *, blow_at: int | None, is_after: bool = False) -> None:
        self.calls = 0
        self._blow_at = blow_at
        self._is_after = is_after

    def wrap(self, target: object) -> "Wrapped":
        return Wrapped(target, self)

    def call(self, method, *args, **options):
        self.calls += 1
        blows = self.calls == self._blow_at
        if blows and not self._is_after:
            raise Crash
        result = method(*args, **options)
        if blows:
            raise Crash
        return result


class Wrapped:
    """Passes every public method of the target through the fuse."""

    def __init__(self, target: object, fuse: Fuse) -> None:
        self._target = target
        self._fuse = fuse

    def __getattr__(self, name: str):
        method = getattr(self._target, name)
        return lambda *args, **options: self._fuse.call(method, *args, **options)


def run_with_fuse(chain, file: Path, fuse: Fuse) -> None:
    """Run one process that puts two intents and pumps them to the end."""
    outbox = SqliteOutbox(file)
    try:
        wrapped = fuse.wrap(outbox)
        for key, amount in (("first", 100), ("second", 1)):
            put(wrapped, key, mint(chain, amount))
        sender = make_sender(chain, wrapped, client=fuse.wrap(chain.client))
        sender.pump()
        mine(chain)
        sender.pump()
        mine(chain)
        sender.pump()
    finally:
        outbox.close()


def settle(chain, file: Path, *, is_automine: bool) -> SqliteOutbox:
    """Run another process without a crash."""
    outbox = SqliteOutbox(file)
    for key, amount in (("first", 100), ("second", 1)):
        put(outbox, key, mint(chain, amount))
    sender = make_sender(chain, outbox)
    if is_automine:
        drain(sender)
    for _ in range(6):
        if sender.pump() == 0:
            break
        mine(chain)
    return outbox


@pytest.mark.parametrize("is_automine", [True, False])
@pytest.mark.parametrize("is_after", [False, True])
def test_pump__crash_at_every_call__each_effect_happens_once(chain, tmp_path, is_after, is_automine):
    if not is_automine:
        stop_mining(chain)
    snapshot = chain.client.request("evm_snapshot")
    before = balance(chain)
    nonce = chain.client.count_transactions(chain.address("deployer"))
    for blow_at in itertools.count(1):
        chain.client.request("evm_revert", snapshot)
        snapshot = chain.client.request("evm_snapshot")
        if not is_automine:
            stop_mining(chain)
        file = tmp_path / str(blow_at)
        fuse = Fuse(blow_at=blow_at, is_after=is_after)
        with contextlib.suppress(Crash):
            run_with_fuse(chain, file, fuse)
        outbox = settle(chain, file, is_automine=is_automine)
        entries = [outbox.find("first"), outbox.find("second")]
        outbox.close()
        assert [entry.state for entry in entries] == [IntentState.MINED] * 2, blow_at
        assert [entry.nonce for entry in entries] == [nonce, nonce + 1], blow_at
        assert balance(chain) == before + 101, blow_at
        if fuse.calls < blow_at:
            break
    assert blow_at > 20, "the run had more calls than that to crash at"


def test_pump__second_time__does_nothing(chain, store):
    before = balance(chain)
    put(store, "a", mint(chain, 5))
    sender = make_sender(chain, store)
    drain(sender)
    put(store, "a", mint(chain, 5))
    assert sender.pump() == 0
    assert balance(chain) == before + 5


def test_pump__later_intent_builds_on_an_earlier__waits_for_it(chain, store):
    pool = chain.open_pool()
    stop_mining(chain)
    put(store, "approve", chain.contracts.token.approve(chain.deployment.epoch_ledger, 9))
    put(store, "fund", chain.contracts.ledger.fund_pool(pool, 9))
    sender = make_sender(chain, store)
    assert sender.pump() == 2
    assert store.find("fund").state is IntentState.UNSENT
    mine(chain)
    assert sender.pump() == 1
    mine(chain)
    assert sender.pump() == 0
    assert chain.contracts.ledger.escrow_of(pool) == 1_000_009


def test_pump__stuck__offers_more_at_the_same_nonce(chain, store):
    stop_mining(chain)
    before = balance(chain)
    put(store, "a", mint(chain, 5))
    sender = make_sender(chain, store, stuck_seconds=2)
    sender.pump()
    # The base fee jumps far above what was offered, so the transaction cannot be mined.
    fee = store.find("a").attempts[0].max_fee
    chain.client.request("anvil_setNextBlockBaseFeePerGas", hex(fee * 2))
    chain.advance(1)
    chain.client.request("anvil_setNextBlockBaseFeePerGas", hex(fee * 2))
    chain.advance(1)
    assert balance(chain) == before
    sender.pump()
    entry = store.find("a")
    assert len(entry.attempts) == 2
    assert entry.attempts[1].max_fee >= entry.attempts[0].max_fee * 1.25
    assert entry.attempts[1].priority_fee >= entry.attempts[0].priority_fee * 1.25
    mine(chain)
    assert sender.pump() == 0
    assert store.find("a").transaction_hash == entry.attempts[1].hash
    assert balance(chain) == before + 5


def test_pump__older_attempt_is_mined__counts_as_well(chain, store):
    stop_mining(chain)
    before = balance(chain)
    put(store, "a", mint(chain, 5))
    sender = make_sender(chain, store, stuck_seconds=0)
    sender.pump()
    sender.pump()
    older, newer = store.find("a").attempts[0], store.find("a").attempts[-1]
    assert older.hash != newer.hash
    chain.client.request("anvil_dropTransaction", newer.hash)
    chain.client.send_raw(older.raw)
    mine(chain)
    assert sender.pump() == 0
    assert store.find("a").transaction_hash == older.hash
    assert balance(chain) == before + 5


def test_pump__node_counts_too_few_transactions__nonces_go_on_from_the_store(chain, store):
    class Lagging(ChainClient):
        def count_transactions(self, address: str, block: str = "latest") -> int:
            return count

    count = chain.client.count_transactions(chain.address("deployer"))
    before = balance(chain)
    put(store, "a", mint(chain, 5))
    put(store, "b", mint(chain, 2))
    drain(make_sender(chain, store, client=Lagging(chain.client.rpc_url)))
    assert (store.find("a").nonce, store.find("b").nonce) == (count, count + 1)
    assert balance(chain) == before + 7


def test_pump__not_yet_stuck__sends_the_same_again(chain, store):
    stop_mining(chain)
    put(store, "a", mint(chain, 5))
    sender = make_sender(chain, store, stuck_seconds=5)
    for _ in range(3):
        sender.pump()
    assert len(store.find("a").attempts) == 1


def test_pump__node_forgot_the_transaction__sends_it_again(chain, store):
    stop_mining(chain)
    before = balance(chain)
    put(store, "a", mint(chain, 5))
    sender = make_sender(chain, store)
    sender.pump()
    chain.client.request("anvil_dropTransaction", store.find("a").attempts[0].hash)
    mine(chain)
    assert balance(chain) == before
    sender.pump()
    mine(chain)
    assert sender.pump() == 0
    assert balance(chain) == before + 5


def test_pump__contract_refuses_for_minutes__is_final_with_its_reason_and_costs_no_nonce(chain, store):
    nonce = chain.client.count_transactions(chain.address("deployer"))
    put(store, "no", chain.contracts.policies.publish(77, 0, f"0x{1:064x}"))
    put(store, "yes", mint(chain, 5))
    sender = make_sender(chain, store)
    pump_until_mined(sender, store, "yes")
    assert (store.find("no").state, store.find("no").reason) == (IntentState.UNSENT, "PoolNotActive(77)")
    assert store.find("yes").nonce == nonce
    for seconds in (1, REFUSED_SECONDS - 2):
        chain.advance(seconds)
        assert sender.pump() == 1
    chain.advance(2)
    assert sender.pump() == 0
    assert (store.find("no").state, store.find("no").reason) == (IntentState.REVERTED, "PoolNotActive(77)")


def test_pump__refused_until_a_later_block__is_sent_then(chain, store):
    pool = chain.open_pool()
    publish = chain.contracts.policies.publish
    put(store, "early", publish(pool, 1, f"0x{1:064x}"))
    sender = Sender(chain.client, chain.wallets["trainer"], store, chain_id=chain.deployment.chain_id)
    assert sender.pump() == 1
    chain.send("trainer", publish(pool, 0, f"0x{2:064x}"))
    drain(sender)
    assert store.find("early").state is IntentState.MINED
    assert (store.find("early").refusal, store.find("early").reason) == (None, "")


def test_pump__estimate_by_a_backend_that_lags__is_not_a_refusal_for_ever(chain, store):
    """One backend has the block that the call requires. The other one, which estimates gas, is one block behind."""
    pool = chain.open_pool()
    publish = chain.contracts.policies.publish
    chain.send("trainer", publish(pool, 0, f"0x{2:064x}"))
    put(store, "next", publish(pool, 1, f"0x{1:064x}"))
    behind = {"eth_estimateGas"}
    lagging = LaggingClient(chain.client.rpc_url, is_behind=behind.__contains__)
    sender = Sender(lagging, chain.wallets["trainer"], store, chain_id=chain.deployment.chain_id)
    assert sender.pump() == 1
    behind.clear()
    drain(sender)
    assert store.find("next").state is IntentState.MINED


def test_pump__reverts_in_the_block__is_kept_with_its_reason(chain, store):
    pool = chain.open_pool()
    policies = chain.contracts.policies
    stop_mining(chain)
    put(store, "late", policies.publish(pool, 0, f"0x{2:064x}"))
    sender = Sender(chain.client, chain.wallets["trainer"], store, chain_id=chain.deployment.chain_id)
    sender.pump()
    # The pool ends in a transaction that comes first, because it pays more.
    data = chain.contracts.pools.end_pool(pool).data.hex()
    operator = chain.address("operator")
    chain.client.request("anvil_impersonateAccount", operator)
    fees = {"maxFeePerGas": hex(10**12), "maxPriorityFeePerGas": hex(10**11)}
    chain.client.request(
        "eth_sendTransaction", {"from": operator, "to": chain.deployment.pool_registry, "data": "0x" + data} | fees
    )
    mine(chain)
    assert sender.pump() == 0
    entry = store.find("late")
    assert entry.state is IntentState.REVERTED
    assert entry.transaction_hash == entry.attempts[0].hash
    assert policies.steps_of(pool) == 0


def test_pump__key_used_elsewhere__takes_a_new_nonce_and_has_its_effect_once(chain, store):
    stop_mining(chain)
    put(store, "a", mint(chain, 5))
    sender = make_sender(chain, store)
    sender.pump()
    lost = store.find("a")
    chain.client.request("anvil_dropTransaction", lost.attempts[0].hash)
    chain.client.request("evm_setAutomine", True)
    before = balance(chain)
    chain.send("deployer", mint(chain, 7))
    assert sender.pump() == 1
    assert store.find("a").nonce == lost.nonce  # the node may merely lag: not displaced at once
    chain.client.request("anvil_mine", hex(6))
    chain.advance(6)
    drain(sender)
    entry = store.find("a")
    assert entry.state is IntentState.MINED
    assert entry.nonce == lost.nonce + 1
    assert balance(chain) == before + 12


def test_pump__no_ether__stops_with_advice(chain, store):
    chain.client.request("anvil_setBalance", chain.address("deployer"), "0x0")
    put(store, "a", mint(chain, 5))
    with pytest.raises(OperatorError) as caught:
        make_sender(chain, store).pump()
    assert caught.value.code == "insufficient_funds"
    address = chain.address("deployer")
    assert f"{address} has 0 ether, which is not enough gas for TestToken.mint" in caught.value.message
    assert f"covey devnet fund {address}" in caught.value.fix
    chain.client.request("anvil_setBalance", chain.address("deployer"), hex(10**20))
    drain(make_sender(chain, store))


def test_send_and_wait__mined__gives_the_entry(chain, store):
    before = balance(chain)
    entry = make_sender(chain, store).send_and_wait("a", mint(chain, 5))
    assert (entry.state, entry.place.block_number) == (IntentState.MINED, chain.client.block_number())
    assert make_sender(chain, store).send_and_wait("a", mint(chain, 5)) == entry
    assert balance(chain) == before + 5


def test_send_and_wait__reverted__raises_with_the_contracts_words(chain, store):
    with pytest.raises(ProtocolError) as caught:
        make_sender(chain, store).send_and_wait("a", chain.contracts.pools.start_pool(99))
    assert caught.value.code == "reverted"
    assert "PoolRegistry.startPool: NotOperator(99, " in caught.value.message


def test_send_and_wait__no_block_in_time__is_transient_and_goes_on_later(chain, store):
    stop_mining(chain)
    before = balance(chain)
    sender = make_sender(chain, store)
    with pytest.raises(TransientError) as caught:
        sender.send_and_wait("a", mint(chain, 5), timeout_s=0.0, wait=lambda _: None)
    assert caught.value.code == "not_mined"
    mine(chain)
    assert sender.send_and_wait("a", mint(chain, 5)).state is IntentState.MINED
    assert balance(chain) == before + 5


def test_send_and_wait__while_waiting__pauses_by_what_it_was_given(chain, store):
    stop_mining(chain)
    pauses: list[float] = []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        mine(chain)

    make_sender(chain, store).send_and_wait("a", mint(chain, 5), wait=wait)
    assert pauses == [0.1]


def test_pump__node_gone__is_transient_and_keeps_the_intent(chain, store):
    put(store, "a", mint(chain, 5))
    with pytest.raises(TransientError):
        make_sender(chain, store, client=ChainClient("http://127.0.0.1:9", timeout_s=0.5)).pump()
    assert store.find("a").state is IntentState.UNSENT


def test_pump__node_of_another_chain__mines_nothing_that_was_signed_for_the_deployment(chain, store):
    before = balance(chain)
    put(store, "a", mint(chain, 5))
    with pytest.raises(CoveyError, match="chain"):
        make_sender(chain, store, chain_id=chain.deployment.chain_id + 1).pump()
    mine(chain)
    assert balance(chain) == before
