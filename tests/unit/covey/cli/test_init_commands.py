"""The chain, ports, environment and sizes that `covey init pool` chooses."""

import json
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from covey.chain.deployment import Deployment
from covey.console.account import read_pool_file
from covey.environments.task_draws import is_held_out
from covey.local import ports
from covey.local.ports import find_places
from covey.local.terms import require_trainable_pool
from covey.model.tiny import tiny_folder
from covey.tasks.catalog import list_folders
from covey.tasks.dataset import open_folder
from covey.tasks.examples import build_rows
from tests.unit.conftest import TOKEN, Command
from trainer.config import TrainerConfig

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


ROWS = "".join(
    json.dumps({"prompt": f"What is {n} + 1?", "verification_info": {"ground_truth": str(n + 1)}}) + "\n"
    for n in range(50)
)
HELD_OUT = sum(is_held_out(f"What is {n} + 1?") for n in range(50))


@pytest.mark.parametrize("model", [None, "folder"])
def test_init_pool__rows__are_in_a_pool_that_its_trainer_accepts(command: Command, tmp_path: Path, model: str | None):
    (tmp_path / "rows.jsonl").write_text(ROWS)
    shutil.copytree(tiny_folder(), tmp_path / "model")
    options = ("--dataset", str(tmp_path / "rows.jsonl"), "--environment", "math")
    options += () if model is None else ("--model", str(tmp_path / "model"))
    answer = command("init", "pool", str(tmp_path / "new"), *options, "--json")
    assert answer.code == 0, answer.err
    params = read_pool_file(tmp_path / "new/pool.toml", TOKEN, datasets=[tmp_path / "new/datasets"])[2]
    trainer = TrainerConfig.load(tmp_path / "new/trainer.toml", {}, {})
    (data_set,) = map(open_folder, list_folders(trainer.datasets))
    assert params.environment.options == {"dataset": data_set.digest}
    assert (params.model.max_prompt_tokens, params.model.max_completion_tokens) == (32, 224)
    assert trainer.eval.prompts == HELD_OUT
    assert trainer.model.path == (None if model is None else str(tmp_path / "model"))
    sizes = json.loads(answer.out)["sizes"]
    assert sizes["max_completion_tokens"]["reason"] == "what the model's context of 256 tokens leaves"
    require_trainable_pool(tmp_path / "new")


def test_init_pool__model_of_ones_own__does_not_keep_the_lengths_of_the_demo(command: Command, tmp_path: Path):
    answer = command("init", "pool", str(tmp_path / "new"), "--model", str(tiny_folder()))
    assert answer.code == 0, answer.err
    params = read_pool_file(tmp_path / "new/pool.toml", TOKEN)[2]
    assert params.model.max_completion_tokens > 100
    assert "max_completion_tokens" in answer.out
    assert params.environment.kind == "reasoning_gym"


def test_init_pool__rows_of_several_types__are_a_mixture_on_request(command: Command, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in build_rows(60)))
    assert "several_types: " in command("init", "pool", str(tmp_path / "new"), "--dataset", str(rows)).err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"], "nothing is left behind"
    options = ("--dataset", str(rows), "--environment", "mixture")
    answer = command("init", "pool", str(tmp_path / "new"), *options)
    assert answer.code == 0, answer.err
    params = read_pool_file(tmp_path / "new/pool.toml", TOKEN, datasets=[tmp_path / "new/datasets"])[2]
    kinds = [part["kind"] for part in params.environment.options["parts"]]
    assert kinds == ["code", "math", "multiple_choice", "short_answer"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--environment", "math"), "no_dataset: "),
        (("--environment", "nope"), "bad_environment: there is no environment kind called 'nope'"),
        (("--dataset", "none.jsonl"), "no_source: the source none.jsonl does not exist"),
        (("--model", "./none"), "model_unavailable: the model folder ./none does not exist"),
    ],
)
def test_init_pool__what_cannot_start__is_refused_and_leaves_nothing(
    command: Command, tmp_path: Path, options: tuple[str, ...], message: str
):
    answer = command("init", "pool", str(tmp_path / "new"), *options)
    assert (answer.code, message in answer.err) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_init_pool__first_ports_are_taken__writes_others_everywhere(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ports, "is_free", lambda port: port >= 8020)
    answer = command("init", "pool", str(tmp_path / "new"))
    assert "The ports are 8020 to 8023, because one from 8000 on is in use." in answer.out
    assert "covey join http://127.0.0.1:8020 worker" in answer.out
    assert "covey init pool" not in answer.out
    assert find_places(tmp_path / "new", 8020) == [
        "coordinator.toml (port)",
        "trainer.toml (coordinator_url)",
        *(f"validator-{i}.toml (coordinator_url)" for i in (1, 2, 3)),
    ]
    assert command("init", "pool", str(tmp_path / "named"), "--port", "8000").code == 0
    assert find_places(tmp_path / "named", 8000)[0] == "coordinator.toml (port)"
