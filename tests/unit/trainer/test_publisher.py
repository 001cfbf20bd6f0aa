"""Each step is published exactly once, whatever happened to chain and outbox before."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from covey.chain.json_rpc import Call
from covey.chain.outbox import Attempt, IntentState, Place, Refusal
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.errors import OperatorError, TransientError
from covey.protocol.ids import ZERO_HASH, Address, Hash, PoolId, Step
from covey.protocol.policy_record import WEIGHTS_FILE, PolicyRecord
from covey.shardcast.origin_store import OriginStore
from tests.fakes.offered_policies import build_offering, read_policy, write_export
from trainer.publisher import REFUSALS, Publisher

pytestmark = pytest.mark.unit

POOL = PoolId(5)
ONE, TWO = Hash("0x" + "01" * 32), Hash("0x" + "02" * 32)


class Chain:
    """A chain whose blocks are mined by `mine`. Its pump only signs."""

    def __init__(self) -> None:
        self.hashes: list[Hash] = []
        self.outbox = SqliteOutbox(":memory:")
        self.pumps = 0

    def steps_of(self, pool: PoolId) -> int:
        return len(self.hashes)

    def policy_of(self, pool: PoolId, step: Step) -> Hash:
        return self.hashes[step]

    def publish(self, pool: PoolId, step: Step, record_hash: Hash) -> Call:
        data = json.dumps([pool, step, record_hash]).encode()
        return Call(to=Address("0x" + "11" * 20), data=data, label="publish")

    def pump(self) -> int:
        self.pumps += 1
        for entry in self.outbox.list_pending():
            if entry.nonce is None:
                attempt = Attempt(hash=TWO, raw=b"", max_fee=1, priority_fee=1)
                self.outbox.record_signed(entry.intent.key, 0, attempt, offered_at=1)
        return 1

    def mine(self) -> None:
        for entry in self.outbox.list_pending():
            self.hashes.append(json.loads(entry.intent.call.data)[2])
            self.outbox.record_mined(entry.intent.key, Place(block_number=1, block_hash=ONE, transaction_hash=TWO))


@pytest.fixture
def chain() -> Any:
    chain = Chain()
    yield chain
    chain.outbox.close()


def build(chain: Chain, root: Path, keep: int = 5) -> Publisher:
    offering = build_offering(root, pool=POOL, keep=keep)
    return Publisher(pool=POOL, registry=chain, outbox=chain.outbox, pump=chain.pump, offering=offering)


def export(folder: Path, values: list[int]) -> Path:
    """Write a policy of one tensor, over the previous one in the folder."""
    return write_export(folder, {"weight": np.array(values, np.uint16)})


def find_state(chain: Chain, key: str) -> IntentState:
    entry = chain.outbox.find(key)
    assert entry is not None
    return entry.state


def test_offer__exported_policy__record_in_the_origin_has_the_returned_hash(chain: Chain, tmp_path: Path) -> None:
    folder, publisher = export(tmp_path / "policy", [1, 2]), build(chain, tmp_path / "origin")
    digest = publisher.offer(folder, Step(0))
    store = OriginStore(tmp_path / "origin")
    record = PolicyRecord.from_bytes(store.find_record(digest) or b"", digest)
    assert (record.pool, record.step, record.parent) == (POOL, 0, ZERO_HASH)
    assert [row.name for row in record.files] == ["config.json"]
    assert load_file(read_policy(store, POOL, digest, tmp_path / "read") / WEIGHTS_FILE)["weight"].shape == (2,)
    assert publisher.offer(folder, Step(0)) == digest
    assert chain.hashes == []  # nothing is on chain before everything is on disk


def test_offer__next_step__names_the_policy_on_chain_as_its_parent(chain: Chain, tmp_path: Path) -> None:
    publisher, store = build(chain, tmp_path / "origin"), OriginStore(tmp_path / "origin")
    first, second = export(tmp_path / "0", [1, 2]), export(tmp_path / "1", [1, 3])
    chain.hashes.append(publisher.offer(first, Step(0)))
    digest = publisher.offer(second, Step(1), base_folder=first)
    assert PolicyRecord.from_bytes(store.find_record(digest) or b"", digest).parent == chain.hashes[0]
    assert load_file(read_policy(store, POOL, digest, tmp_path / "read") / WEIGHTS_FILE)["weight"].shape == (2,)


def test_offer__parent_is_not_on_chain__is_transient_and_writes_nothing(chain: Chain, tmp_path: Path) -> None:
    publisher = build(chain, tmp_path / "origin")
    with pytest.raises(TransientError, match="reorganised"):
        publisher.offer(export(tmp_path / "policy", [1]), Step(1))
    assert OriginStore(tmp_path / "origin").read_head(POOL) is None


def test_offer__more_than_kept__removes_the_oldest_before_adding_the_next(chain: Chain, tmp_path: Path) -> None:
    publisher, store = build(chain, tmp_path / "origin", keep=2), OriginStore(tmp_path / "origin")
    for step in range(4):  # Without a base every policy is an anchor, which needs no other policy.
        chain.hashes.append(publisher.offer(export(tmp_path / str(step), [step]), Step(step)))
    head = store.read_head(POOL)
    assert head is not None
    assert [policy.step for policy in head.policies] == [3, 2, 1]


def test_advance__until_it_is_mined__is_false_then_true(chain: Chain, tmp_path: Path) -> None:
    publisher = build(chain, tmp_path)
    assert publisher.advance(Step(0), ONE) is False
    assert publisher.advance(Step(0), ONE) is False
    chain.mine()
    assert publisher.advance(Step(0), ONE) is True
    assert chain.hashes == [ONE]
    assert find_state(chain, "publish/5/0") is IntentState.MINED


def test_advance__already_on_chain_and_an_empty_outbox__sends_nothing(chain: Chain, tmp_path: Path) -> None:
    chain.hashes.append(ONE)
    assert build(chain, tmp_path).advance(Step(0), ONE) is True
    assert chain.outbox.find("publish/5/0") is None
    assert chain.pumps == 0


def test_advance__another_hash_on_chain__is_refused(chain: Chain, tmp_path: Path) -> None:
    chain.hashes.append(TWO)
    with pytest.raises(OperatorError, match="another_policy"):
        build(chain, tmp_path).advance(Step(0), ONE)


def test_advance__another_hash_in_the_outbox__is_refused(chain: Chain, tmp_path: Path) -> None:
    publisher = build(chain, tmp_path)
    publisher.advance(Step(0), ONE)
    pumps = chain.pumps
    with pytest.raises(OperatorError, match=r"another_policy: the outbox contains a transaction .*outbox\.sqlite3"):
        publisher.advance(Step(0), TWO)
    assert chain.pumps == pumps  # otherwise the other policy would be sent


def refuse(chain: Chain) -> None:
    """Let the contract refuse every pending intent."""
    for entry in chain.outbox.list_pending():
        chain.outbox.record_reverted(entry.intent.key, "PoolNotActive", None)


def test_advance__contract_refuses__stops_with_its_reason_after_some_tries(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = chain.pump
    monkeypatch.setattr(chain, "pump", lambda: refuse(chain))
    for _ in range(2):  # two processes, one after the other
        publisher = build(chain, tmp_path)
        for _ in range(REFUSALS - 1):
            with pytest.raises(TransientError, match="PoolNotActive"):
                publisher.advance(Step(0), ONE)
        with pytest.raises(OperatorError, match=r"publication_refused: .*PoolNotActive"):
            publisher.advance(Step(0), ONE)
    monkeypatch.setattr(chain, "pump", sign)
    publisher = build(chain, tmp_path)
    assert publisher.advance(Step(0), ONE) is False
    chain.mine()
    assert publisher.advance(Step(0), ONE) is True
    assert chain.hashes == [ONE]


def test_advance__block_of_the_previous_policy_is_gone__waits_until_it_is_back(chain: Chain, tmp_path: Path) -> None:
    publisher = build(chain, tmp_path)
    with pytest.raises(TransientError, match="reorganised: the block that published policy 0"):
        publisher.advance(Step(1), TWO)
    assert (chain.outbox.list_pending(), chain.pumps) == ([], 1), "the previous policy is sent again, this one is not"
    chain.hashes.append(ONE)
    assert publisher.advance(Step(1), TWO) is False
    chain.mine()
    assert publisher.advance(Step(1), TWO) is True


def test_watch__newest_policy_is_gone__is_sent_again(chain: Chain, tmp_path: Path) -> None:
    """Without a later policy to publish, nothing else would send it."""
    publisher = build(chain, tmp_path)
    publisher.advance(Step(0), ONE)
    chain.mine()
    assert publisher.advance(Step(0), ONE) is True
    before = chain.pumps
    publisher.watch(Step(1))
    assert chain.pumps == before, "all policies are on chain, so nothing is sent"
    chain.hashes.clear()
    build(chain, tmp_path).watch(Step(1))
    assert chain.pumps == before + 1


def test_advance__refused_for_now__is_transient(chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_once() -> int:
        for entry in chain.outbox.list_pending():
            chain.outbox.record_refused(entry.intent.key, Refusal.at(5), "WrongStep")
        return 1

    monkeypatch.setattr(chain, "pump", refuse_once)
    publisher = build(chain, tmp_path)
    for _ in range(REFUSALS + 1):
        with pytest.raises(
            TransientError, match=r"publication_refused: .* currently refused by the contract: WrongStep"
        ):
            publisher.advance(Step(0), ONE)


def test_offer__chain_holds_another_policy__leaves_its_record_in_the_origin(chain: Chain, tmp_path: Path) -> None:
    publisher, store = build(chain, tmp_path / "origin"), OriginStore(tmp_path / "origin")
    chain.hashes.append(publisher.offer(export(tmp_path / "policy", [1]), Step(0)))
    before = store.read_head(POOL)
    with pytest.raises(OperatorError, match="another_policy"):
        publisher.offer(export(tmp_path / "other", [2]), Step(0))
    assert store.read_head(POOL) == before


def test_advance__its_block_is_gone__is_transient(chain: Chain, tmp_path: Path) -> None:
    publisher = build(chain, tmp_path)
    publisher.advance(Step(0), ONE)
    chain.mine()
    chain.hashes.clear()
    with pytest.raises(TransientError, match="reorganised"):
        publisher.advance(Step(0), ONE)
