"""The chain that `covey init pool` chooses."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from covey.chain.deployment import Deployment
from tests.unit.conftest import TOKEN, Command

pytestmark = pytest.mark.unit
NODE = "https://rpc.example/KEY"
FIELDS = ("pool_registry", "node_registry", "policy_registry", "stake_manager", "epoch_ledger", "slashing_court")


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a deployment file whose node is in COVEY_RPC_URL, with the provider's key."""
    monkeypatch.setenv("COVEY_RPC_URL", NODE)
    file = tmp_path / "deployment.json"
    Deployment(chain_id=5, start_block=7, token=TOKEN, **dict.fromkeys(FIELDS, TOKEN)).save(file)
    return file


def read_node(folder: Path) -> object:
    return tomllib.loads((folder / "coordinator.toml").read_text()).get("rpc_url")


@pytest.mark.parametrize(("chain", "node"), [((), NODE), (("--chain", "http://own:8545"), "http://own:8545")])
def test_init_pool__deployment__takes_the_node_of_the_option_or_of_the_variable(
    command: Command, deployment: Path, tmp_path: Path, chain: tuple[str, ...], node: str
):
    options = ("--deployment", str(deployment), "--public-url", "http://pool.example", *chain)
    answer = command("init", "pool", str(tmp_path / "new"), *options)
    assert answer.code == 0, answer.err
    assert read_node(tmp_path / "new") == node
    assert NODE not in answer.out + answer.err


def test_init_pool__variable_alone__is_a_devnet(command: Command, deployment: Path, tmp_path: Path):
    assert command("init", "pool", str(tmp_path / "new")).code == 0
    assert read_node(tmp_path / "new") is None
    assert "devnet up" in (tmp_path / "new" / "processes.toml").read_text()


def test_init_pool__devnet_is_named__refuses_a_deployment(command: Command, deployment: Path, tmp_path: Path):
    answer = command("init", "pool", str(tmp_path / "new"), "--chain", "devnet", "--deployment", str(deployment))
    assert (answer.code, "a devnet, which deploys its own contracts" in answer.err) == (1, True)


def test_init_pool__blank_in_the_path__is_quoted_in_the_commands(command: Command, tmp_path: Path):
    folder = tmp_path / "my pool"
    shown = json.loads(command("init", "pool", str(folder), "--json").out)
    words = [shlex.split(step) for step in shown["next"]]
    assert words[0] == ["covey", "up", str(folder), "--detach"]
    assert words[1][-2:] == ["--deployment", f"{folder}/chain/deployment.json"]
