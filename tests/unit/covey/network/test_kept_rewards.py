"""Proofs that are kept: which one is found, and what is not believed."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.chain.structs import EpochRecord
from covey.errors import ProtocolError
from covey.network.kept_rewards import KeptRewards, fetch_reward, find_kept, require_reward
from covey.protocol.api.public import RewardView
from covey.protocol.merkle import MerkleTree, compute_reward_leaf
from tests.fakes.account import ALICE, BOB, HASH

pytestmark = pytest.mark.unit


def leaf(who: str, amount: int) -> bytes:
    return compute_reward_leaf(chain=5, ledger=BOB, pool=1, contributor=who, cumulative=amount)


def tree(epoch: int) -> MerkleTree:
    return MerkleTree([leaf(ALICE, 10 * epoch + 10), leaf(BOB, 7)])


def view(epoch: int, who: str = ALICE) -> RewardView:
    amount = 10 * epoch + 10 if who == ALICE else 7
    proof = tree(epoch).get_proof(leaf(who, amount))
    return RewardView(epoch=epoch, contributor=who, cumulative=amount, proof=tuple(proof))


def record(epoch: int) -> EpochRecord:
    return EpochRecord(
        header_hash=HASH, reward_root=tree(epoch).root, epoch=epoch, final_at=100 * (epoch + 1), reward=1, cumulative=1
    )


class History:
    """Epochs 0 to 3, of which some are disabled."""

    def __init__(self, *disabled: int) -> None:
        ledger = SimpleNamespace(address=BOB, is_posted=lambda pool, record: record.epoch not in disabled)
        self.contracts = SimpleNamespace(ledger=ledger, deployment=SimpleNamespace(chain_id=5))

    def find_epoch(self, pool: int, epoch: int) -> SimpleNamespace | None:
        return SimpleNamespace(record=record(epoch)) if epoch <= 3 else None


def find(kept: KeptRewards, history: History, now: int, who: str = ALICE) -> int | None:
    found = find_kept([kept], history, pool=1, contributor=who, now=now)
    return None if found is None else found[1].epoch


@pytest.fixture
def kept(tmp_path: Path) -> KeptRewards:
    kept = KeptRewards(tmp_path / "rewards")
    for epoch in range(4):
        kept.keep(view(epoch))
    return kept


@pytest.mark.parametrize(
    ("disabled", "now", "expected"),
    [((), 1000, 3), ((), 350, 2), ((3,), 1000, 2), ((2, 3), 1000, 1), ((), 99, None), ((0, 1, 2, 3), 1000, None)],
)
def test_find_kept__newest_that_stands_and_is_final(
    kept: KeptRewards, disabled: tuple[int, ...], now: int, expected: int | None
):
    assert find(kept, History(*disabled), now) == expected


def test_find_kept__damaged_and_foreign_files__are_skipped(kept: KeptRewards, tmp_path: Path):
    folder = tmp_path / "rewards"
    (folder / "3.json").write_text("{")
    (folder / "2.json").write_text(view(2, BOB).model_dump_json())
    (folder / "notes.json").write_text("{}")
    assert find(kept, History(), 1000) == 1
    assert find(kept, History(), 1000, who=BOB) == 2


def test_keep__more_than_the_ledger_keeps__deletes_the_oldest(tmp_path: Path):
    kept = KeptRewards(tmp_path)
    for epoch in (0, 1, 256):
        kept.keep(view(epoch))
    assert kept.list_epochs() == [256, 1]
    assert KeptRewards(tmp_path).list_missing([0, 1, 2, 255, 256]) == [255, 2, 0]


@pytest.mark.parametrize(
    "lie", [{"cumulative": 21}, {"proof": ()}, {"proof": (HASH,)}, {"epoch": 2}, {"contributor": BOB}]
)
def test_require_reward__proof_that_is_not_the_roots__is_refused(lie: dict[str, object]):
    told = view(1).model_copy(update=lie)
    with pytest.raises(ProtocolError, match="bad_reward"):
        require_reward(told, record(1), History().contracts, pool=1, contributor=ALICE)
    assert require_reward(view(1), record(1), History().contracts, pool=1, contributor=ALICE) == view(1)


@pytest.mark.parametrize(("code", "raises"), [("no_reward", False), ("unknown_epoch", True)])
def test_fetch_reward__nothing_earned__is_none(code: str, raises: bool):
    async def refuse(*_: object) -> RewardView:
        raise ProtocolError(code, "none")

    asked = fetch_reward(SimpleNamespace(get_reward=refuse), ALICE, 1)
    if raises:
        with pytest.raises(ProtocolError, match=code):
            asyncio.run(asked)
    else:
        assert asyncio.run(asked) is None


def test_find_kept__folders_of_two_contributors__each_finds_its_own(kept: KeptRewards, tmp_path: Path):
    other = KeptRewards(tmp_path / "other")
    other.keep(view(3, BOB))
    for stores in ([kept, other], [other, kept]):
        for who in (ALICE, BOB):
            found = find_kept(stores, History(), pool=1, contributor=who, now=1000)
            assert found is not None
            assert found[1].contributor == who
