"""Each step is published exactly once, whatever happened to chain and outbox before."""

import json
from pathlib import Path
from typing import Any

import pytest

from covey.chain.json_rpc import Call
from covey.chain.outbox import Attempt, IntentState, Place, Refusal
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.errors import OperatorError, TransientError
from covey.protocol.ids import Address, Hash, PoolId, Step
from covey.protocol.manifest import Manifest, PolicyName
from covey.shardcast.store import Retention, ShardStore
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

    def publish(self, pool: PoolId, step: Step, manifest_hash: Hash) -> Call:
        data = json.dumps([pool, step, manifest_hash]).encode()
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
    retention, store = Retention(keep=keep), ShardStore(root)
    return Publisher(pool=POOL, registry=chain, outbox=chain.outbox, pump=chain.pump, store=store, retention=retention)


def find_state(chain: Chain, key: str) -> IntentState:
    entry = chain.outbox.find(key)
    assert entry is not None
    return entry.state


def test_offer__folder_of_files__manifest_in_the_origin_has_the_returned_hash(chain: Chain, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    publisher = build(chain, tmp_path / "origin")
    digest = publisher.offer(folder, Step(3))
    name = PolicyName(pool=POOL, step=3, manifest_hash=digest)
    manifest = Manifest.from_bytes(ShardStore(tmp_path / "origin").get_manifest_path(name).read_bytes(), digest)
    assert (manifest.pool, manifest.step) == (POOL, 3)
    assert [file.name for file in manifest.files] == ["model.safetensors"]
    assert publisher.offer(folder, Step(3)) == digest
    assert chain.hashes == []  # nothing is on chain before everything is on disk


def test_offer__more_than_kept__removes_the_oldest_before_adding_the_next(chain: Chain, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    folder.mkdir()
    publisher = build(chain, tmp_path / "origin", keep=2)
    for step in range(4):
        (folder / "model.safetensors").write_bytes(bytes([step]))
        publisher.offer(folder, Step(step))
    store = ShardStore(tmp_path / "origin")
    assert store.list_steps(POOL) == [1, 2, 3]
    assert len(list((store.root / "shards").iterdir())) == 3


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


def test_offer__chain_holds_another_policy__leaves_its_manifest_in_the_origin(chain: Chain, tmp_path: Path) -> None:
    folder, store = tmp_path / "policy", ShardStore(tmp_path / "origin")
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    publisher = build(chain, store.root)
    chain.hashes.append(publisher.offer(folder, Step(0)))
    path = store.get_manifest_path(PolicyName(pool=POOL, step=0, manifest_hash=chain.hashes[0]))
    assert list(path.parent.iterdir()) == [path]
    (folder / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(OperatorError, match="another_policy"):
        publisher.offer(folder, Step(0))
    assert list(path.parent.iterdir()) == [path]


def test_advance__its_block_is_gone__is_transient(chain: Chain, tmp_path: Path) -> None:
    publisher = build(chain, tmp_path)
    publisher.advance(Step(0), ONE)
    chain.mine()
    chain.hashes.clear()
    with pytest.raises(TransientError, match="reorganised"):
        publisher.advance(Step(0), ONE)
