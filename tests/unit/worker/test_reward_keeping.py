"""Proofs of three epochs, kept with a coordinator that may lie or be silent about one of them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey.errors import ProtocolError, TransientError
from covey.network.kept_rewards import KeptRewards, build_reward
from covey.protocol import canonical
from covey.protocol.object_keys import build_epoch_key
from covey.runtime.cycle import CycleResult
from tests.fakes.pool import make_address
from tests.unit.covey.protocol.test_epoch_file import CHAIN, LEDGER, build
from worker import reward_keeping
from worker.reward_keeping import keep_rewards

pytestmark = pytest.mark.unit
WHO, OTHER = make_address("contributor 0"), make_address("contributor 1")
EPOCHS = 3


class Coordinator:
    """Serves the rewards and files of the epochs, except for what a test takes away."""

    def __init__(self, rewards: list[dict[str, int]]) -> None:
        self.posted: list[Any] = []
        self.files: dict[str, bytes] = {}
        self.views: list[Any] = []
        self.asked: list[int] = []
        self.lies: set[int] = set()
        """Epochs of which it says that nothing was earned."""
        for epoch, amounts in enumerate(rewards):
            file, header = build([], amounts)
            file = replace(file, epoch=epoch)
            header = replace(header, epoch=epoch, data_hash=canonical.sha256(file.to_bytes()))
            record = SimpleNamespace(epoch=epoch, reward_root=header.reward_root)
            self.posted.append(SimpleNamespace(epoch=epoch, header=header, record=record))
            self.files[build_epoch_key(1, header.data_hash)] = file.to_bytes()
            self.views.append(build_reward(file, WHO, chain=CHAIN, ledger=LEDGER))

    async def get_reward(self, contributor: str, epoch: int) -> Any:
        self.asked.append(epoch)
        if self.views[epoch] is None or epoch in self.lies:
            raise ProtocolError("no_reward", "nothing")
        return self.views[epoch]

    async def get_public(self, key: str, *, max_bytes: int) -> bytes:
        if key not in self.files:
            raise TransientError("coordinator_unreachable", "withheld")
        return self.files[key]


@pytest.fixture
def ctx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    coordinator = Coordinator([{WHO: 5, OTHER: 1}, {WHO: 7, OTHER: 1}, {WHO: 9, OTHER: 2}])
    history = SimpleNamespace(find_epoch=lambda pool, epoch: coordinator.posted[epoch])
    monkeypatch.setattr(reward_keeping, "History", lambda **_: history)
    ledger = SimpleNamespace(address=LEDGER, epochs_of=lambda pool: EPOCHS, is_posted=lambda pool, record: True)
    contracts = SimpleNamespace(ledger=ledger, deployment=SimpleNamespace(chain_id=CHAIN))
    network = SimpleNamespace(pool=1, contracts=contracts, chain=None, coordinator=coordinator)
    return SimpleNamespace(network=network, contributor=WHO, rewards=KeptRewards(tmp_path / "rewards"))


async def test_keep_rewards__coordinator_says_nothing_was_earned__the_file_proves_it_wrong(ctx: Any):
    ctx.network.coordinator.lies = {1}
    assert await keep_rewards(ctx) is CycleResult.IDLE
    assert [(epoch, ctx.rewards.read(epoch).cumulative) for epoch in ctx.rewards.list_epochs()] == [
        (2, 9), (1, 7), (0, 5),
    ]  # fmt: skip
    ctx.network.coordinator.asked.clear()
    assert await keep_rewards(ctx) is CycleResult.IDLE
    assert ctx.network.coordinator.asked == []


async def test_keep_rewards__lie_and_no_file__keeps_the_others_and_asks_again(ctx: Any):
    coordinator = ctx.network.coordinator
    coordinator.lies = {2}
    key = build_epoch_key(1, coordinator.posted[2].header.data_hash)
    data = coordinator.files.pop(key)
    with pytest.raises(TransientError, match="withheld"):
        await keep_rewards(ctx)
    assert ctx.rewards.list_epochs() == [1, 0]
    coordinator.files[key] = data.replace(WHO.encode(), OTHER.encode())  # another file says nothing
    with pytest.raises(ProtocolError, match="digest_mismatch"):
        await keep_rewards(ctx)
    coordinator.files[key] = data
    assert await keep_rewards(ctx) is CycleResult.IDLE
    assert ctx.rewards.read(2).cumulative == 9
    assert coordinator.asked == [2, 1, 0, 2, 2]


async def test_keep_rewards__nothing_was_earned__is_not_asked_again(ctx: Any):
    ctx.contributor = make_address("somebody else")
    ctx.network.coordinator.lies = {0, 1, 2}
    assert await keep_rewards(ctx) is CycleResult.IDLE
    assert await keep_rewards(ctx) is CycleResult.IDLE
    assert ctx.network.coordinator.asked == [2, 1, 0]
    assert ctx.rewards.list_epochs() == []
