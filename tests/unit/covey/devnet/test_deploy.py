"""Checks of a devnet's folder before Anvil is started."""

import fcntl
from pathlib import Path

import pytest

from covey.chain.deployment import Deployment
from covey.devnet import deploy
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

ALICE = deploy.derive_wallet("x", "alice").address
DEPLOYMENT = Deployment(
    chain_id=31337,
    rpc_url="http://127.0.0.1:1",
    start_block=0,
    pool_registry=ALICE,
    node_registry=ALICE,
    policy_registry=ALICE,
    stake_manager=ALICE,
    epoch_ledger=ALICE,
    slashing_court=ALICE,
    token=ALICE,
)


@pytest.mark.parametrize(
    ("state", "has_deployment", "code", "word"),
    [
        ("{}", False, "devnet_differs", "deployment.json is missing"),
        (None, True, "devnet_differs", "state.json is missing"),
        ('{"block": {"number": "0x', True, "bad_state", "is incomplete"),
        ("", False, "bad_state", "is incomplete"),
    ],
)
def test_up__files_that_do_not_fit__is_refused_and_nothing_is_lost(
    tmp_path: Path, state: str | None, has_deployment: bool, code: str, word: str
):
    if state is not None:
        (tmp_path / "state.json").write_text(state)
    if has_deployment:
        DEPLOYMENT.save(tmp_path / "deployment.json")
    with pytest.raises(OperatorError, match=f"{code}: .*{word}.* covey devnet up --folder {tmp_path} --fresh"):
        deploy.up(tmp_path)
    assert (tmp_path / "state.json").exists() == (state is not None)
    assert (tmp_path / "deployment.json").exists() == has_deployment


def test_up__folder_that_a_node_writes_to__is_refused_with_the_way_to_stop_it(tmp_path: Path):
    (tmp_path / "anvil.pid").write_text("4711\n")
    DEPLOYMENT.save(tmp_path / "deployment.json")
    with (tmp_path / "anvil.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(OperatorError, match=r"devnet_runs: .* is already running.*stop it with kill 4711"):
            deploy.up(tmp_path, is_fresh=True)
    assert Deployment.load(tmp_path / "deployment.json") == DEPLOYMENT
