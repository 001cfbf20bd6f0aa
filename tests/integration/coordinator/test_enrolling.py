"""`covey worker enroll` on a real chain stakes what the coordinator requires, and a refusal costs nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from covey import cli
from covey.chain.structs import BondKind
from covey.chain.wallet import load_key, save_key
from covey.devnet import deploy
from covey.errors import OperatorError
from covey.local.joining import CheckedPool, create_worker_folder
from covey.protocol.ids import PoolId
from tests.fakes.network import MIN_STAKE, CoordinatorHarness

pytestmark = pytest.mark.integration
STAKED = 3 * MIN_STAKE
"""Stake of the contributor in the harness's pool, where two of its nodes are registered."""


def make_folder(harness: CoordinatorHarness, folder: Path, *, workers: int, pool: PoolId | None = None) -> Path:
    """Make a folder like `covey join` does for a node whose URL contains a key: only the settings contain the URL."""
    number = harness.ctx.ledger.pool if pool is None else pool
    joined = CheckedPool(
        pool=number,
        url=harness.url,
        deployment=replace(harness.chain.deployment, rpc_url=f"{harness.chain.client.rpc_url}/?key=secret"),
        terms=harness.ctx.terms,
        params=harness.ctx.params,
        operator=harness.chain.address("operator"),
    )
    create_worker_folder(folder, joined, ["cpu"] * workers, 1)
    return folder


def key_of(folder: Path, name: str) -> Path:
    file = folder / f"{name}.key"
    if not file.exists():
        save_key(file, deploy.derive_key("test", name))
    return file


def enroll(capsys, folder: Path, key_file: Path):
    cli.app(["worker", "enroll", str(folder), "--key-file", str(key_file), "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def count_sent(harness: CoordinatorHarness, name: str) -> int:
    return harness.chain.client.count_transactions(harness.wallet(name).address)


async def test_enroll__variables_of_commands__enroll_for_the_pool_of_the_folder(
    harness: CoordinatorHarness, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    folder = make_folder(harness, tmp_path / "second", workers=1)
    monkeypatch.setenv("COVEY_POOL", "77")
    monkeypatch.setenv("COVEY_KEY_FILE", str(folder / "no-such.key"))
    monkeypatch.setenv("COVEY_RPC_URL", "http://127.0.0.1:9")
    done = enroll(capsys, folder, key_of(tmp_path, "contributor"))
    assert done["nodes"] == [load_key(folder / "keys/node-1.key").address]


async def test_enroll__nodes_on_another_machine__are_staked_for_and_the_coordinator_agrees(
    harness: CoordinatorHarness, tmp_path: Path, capsys
):
    """Two nodes of the contributor work elsewhere. Two more require 400 in all, and it has staked 300."""
    folder = make_folder(harness, tmp_path / "second", workers=2)
    for name in ("node", "node-2"):
        async with harness.client(name) as elsewhere:
            await elsewhere.register()
    done = enroll(capsys, folder, key_of(tmp_path, "contributor"))
    assert (done["added"], done["registered"], done["backed"]) == (4 * MIN_STAKE - STAKED, 2, 4)
    for i in (1, 2):
        wallet = load_key(folder / f"keys/node-{i}.key")
        harness.chain.wallets[f"second-{i}"] = wallet
        async with harness.client(f"second-{i}") as here:
            assert (await here.register()).contributor == harness.chain.address("contributor")
    before = count_sent(harness, "contributor")
    done = enroll(capsys, folder, key_of(tmp_path, "contributor"))
    assert (done["added"], done["registered"], done["backed"]) == (0, 0, 4)
    assert count_sent(harness, "contributor") == before


def test_enroll__node_that_was_removed__needs_no_stake(harness: CoordinatorHarness, tmp_path: Path, capsys):
    nodes, pool = harness.chain.contracts.nodes, harness.ctx.ledger.pool
    harness.chain.send("contributor", nodes.remove_node(pool, harness.wallet("node-2").address))
    folder = make_folder(harness, tmp_path / "second", workers=2)
    done = enroll(capsys, folder, key_of(tmp_path, "contributor"))
    assert (done["added"], done["backed"]) == (0, 3)


def test_enroll__not_invited__is_refused_before_any_money_moves(harness: CoordinatorHarness, tmp_path: Path, capsys):
    chain, pools = harness.chain, harness.chain.contracts.pools
    terms = replace(pools.get_terms(harness.ctx.ledger.pool), is_invite_only=True)
    validators = [chain.address(f"validator-{i}") for i in range(3)]
    chain.send("operator", pools.create_pool(terms, validators, harness.ctx.params.to_text()))
    pool = PoolId(pools.count_pools())
    chain.send("operator", pools.start_pool(pool))
    folder, key = make_folder(harness, tmp_path / "mine", workers=1, pool=pool), key_of(tmp_path, "contributor")
    before = count_sent(harness, "contributor")
    with pytest.raises(OperatorError) as caught:
        enroll(capsys, folder, key)
    contributor = chain.address("contributor")
    assert (caught.value.code, f"covey pool invite {contributor}" in caught.value.fix) == ("not_invited", True)
    assert count_sent(harness, "contributor") == before
    chain.send("operator", chain.contracts.nodes.invite(pool, [contributor]))
    assert enroll(capsys, folder, key)["added"] == MIN_STAKE


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("nobody", "needs ether for gas and 0.0000000000000001 CVT to stake, but has 0 CVT"),
        ("rich", "needs 0.0000000000000001 CVT to stake, but has 0 CVT"),
    ],
)
def test_enroll__too_little_money__is_refused_with_the_amount(
    harness: CoordinatorHarness, tmp_path: Path, capsys, name: str, needs: str
):
    folder = make_folder(harness, tmp_path / "mine", workers=1)
    if name == "rich":
        harness.chain.client.request("anvil_setBalance", harness.wallet(name).address, hex(10**18))
    with pytest.raises(OperatorError) as caught:
        enroll(capsys, folder, key_of(tmp_path, name))
    assert (caught.value.code, needs in caught.value.message) == ("unfunded", True), caught.value
    assert count_sent(harness, name) == 0


def test_enroll__nodes_of_another_contributor__are_not_staked_for_again(
    harness: CoordinatorHarness, tmp_path: Path, capsys
):
    folder = make_folder(harness, tmp_path / "mine", workers=1)
    enroll(capsys, folder, key_of(tmp_path, "contributor"))
    with pytest.raises(OperatorError, match="node_taken") as caught:
        enroll(capsys, folder, key_of(tmp_path, "trainer"))
    assert f"Use the key file of {harness.chain.address('contributor')}" in caught.value.fix
    stakes = harness.chain.contracts.stakes
    trainer = harness.chain.address("trainer")
    assert stakes.stake_of(harness.ctx.ledger.pool, BondKind.CONTRIBUTOR, trainer) == 0


def test_enroll__pool_that_has_ended__is_refused(harness: CoordinatorHarness, tmp_path: Path, capsys):
    folder = make_folder(harness, tmp_path / "mine", workers=2)
    harness.chain.send("operator", harness.chain.contracts.pools.end_pool(harness.ctx.ledger.pool))
    with pytest.raises(OperatorError, match="pool_not_active"):
        enroll(capsys, folder, key_of(tmp_path, "contributor"))
