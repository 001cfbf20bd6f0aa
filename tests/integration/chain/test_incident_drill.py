"""The drill of docs/guides/respond-to-an-incident.md: its commands, in order, on a chain with a false epoch.

The registry is paused, an epoch is disabled, and the signer's key is rotated. Claims of final epochs flow throughout.
"""

import shlex
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from covey import cli
from covey.chain.structs import BondKind, PoolRole
from covey.chain.wallet import save_key
from covey.errors import ProtocolError
from covey.network.kept_rewards import KeptRewards
from covey.protocol.api.public import RewardView
from covey.protocol.ids import hash_from_bytes
from covey.protocol.merkle import compute_reward_leaf
from tests.e2e.fences import ROOT, read_fences
from tests.integration.chain.making import make_header, post, word

pytestmark = pytest.mark.integration

GUIDE = ROOT / "docs" / "guides" / "respond-to-an-incident.md"
REASON = "the incident drill runs it"
KEYS = {"admin": "deployer", "operator": "operator", "arbiter": "arbiter", "contributor": "contributor"}
WINDOWS, UNBOND = 20, 20


def read_commands() -> dict[str, list[str]]:
    """Return the guide's commands, in order, by their first two words."""
    lines = [fence.body for fence in read_fences(GUIDE) if fence.language == "sh" and fence.reason == REASON]
    words = [shlex.split(line)[1:] for line in lines]
    return {" ".join(each[:2]): each for each in words}


class Drill:
    """A pool whose contributor has earned something in each honest epoch."""

    def __init__(self, chain, folder: Path) -> None:
        self.chain = chain
        self.pool = chain.open_pool()
        chain.join(self.pool)
        chain.deployment.save(folder / "deployment.json")
        for name, wallet in KEYS.items():
            save_key(folder / f"{name}.key", chain.wallets[wallet].key)
        self.proofs = KeptRewards(folder / "rewards")
        self.commands = read_commands()

    def post(self, earned: int, *, signer: str = "operator") -> None:
        """Post an epoch by whose end the contributor has earned `earned`, and keep its proof as a worker does."""
        contributor, domain = self.chain.address("contributor"), self.chain.domain("epoch_ledger")
        leaf = compute_reward_leaf(
            chain=domain.chain_id,
            ledger=domain.contract,
            pool=self.pool,
            contributor=contributor,
            cumulative=earned,
        )
        root = hash_from_bytes(leaf)
        header = make_header(self.chain, self.pool, work_root=word(1), reward_root=root, units=50)
        post(self.chain, self.pool, header, signer=signer)
        self.proofs.keep(RewardView(epoch=header.epoch, contributor=contributor, cumulative=earned, proof=()))

    def try_to(self, name: str) -> Result:
        words = [self.chain.address("node") if word == "0xNEW_SIGNER" else word for word in self.commands[name]]
        return CliRunner().invoke(cli.app, words)

    def run(self, name: str) -> None:
        result = self.try_to(name)
        assert result.exit_code == 0, f"{name}: {result.output} {result.exception!r}"

    def held(self) -> int:
        return self.chain.contracts.token.balance_of(self.chain.address("contributor"))


def test_drill__pause_disabled_epoch_and_new_signer__claims_flow(
    chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    drill = Drill(chain, tmp_path)
    assert list(drill.commands) == [
        "registry pause",
        "epoch disable",
        "pool rotate",
        "rewards claim",
        "registry unpause",
    ]
    assert drill.pool == 1, "the guide's commands name pool 1"
    before = drill.held()
    drill.post(60)
    chain.advance(WINDOWS)
    drill.post(150)

    drill.run("registry pause")
    with pytest.raises(ProtocolError, match="PoolNotOpen"):
        chain.send("contributor", chain.contracts.stakes.stake(drill.pool, BondKind.CONTRIBUTOR, 1))

    drill.run("epoch disable")
    drill.run("rewards claim")
    assert drill.held() == before + 60, "the first epoch pays, and the disabled one does not"

    drill.run("pool rotate")
    assert chain.contracts.pools.get_role(drill.pool, PoolRole.SIGNER).account == chain.address("operator")
    chain.advance(UNBOND)
    assert chain.contracts.pools.get_role(drill.pool, PoolRole.SIGNER).account == chain.address("node")
    assert drill.try_to("rewards claim").exit_code != 0, "the disabled epoch would be final by now"
    with pytest.raises(ProtocolError, match="NotSigner"):
        drill.post(110)
    drill.post(110, signer="node")
    chain.advance(WINDOWS)
    drill.run("rewards claim")
    assert drill.held() == before + 110, "what the new signer has posted pays while the registry is paused"

    drill.run("registry unpause")
    chain.bond("contributor", drill.pool, BondKind.CONTRIBUTOR, 1)
