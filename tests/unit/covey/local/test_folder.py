import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.config import CoordinatorConfig
from covey.chain.deployment import Deployment
from covey.chain.wallet import load_key
from covey.console.account import read_pool_file
from covey.console.pool_terms import list_weaknesses
from covey.errors import OperatorError
from covey.local.folder import (
    create_pool_folder,
    new_folder,
    read_processes,
    set_pool_number,
)
from covey.local.plan import DEPLOYMENT_FILE, NamedChain, PoolPlan
from trainer.config import TrainerConfig
from validator.config import ValidatorConfig

pytestmark = pytest.mark.unit

TOKEN = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
DEPLOYMENT = Deployment(
    chain_id=5, rpc_url="http://node:8545", start_block=7, token=TOKEN,
    **dict.fromkeys(
        ("pool_registry", "node_registry", "policy_registry", "stake_manager", "epoch_ledger", "slashing_court"), TOKEN
    ),
)  # fmt: skip
NODE = "https://node.example/v2/secret"
PUBLIC = NamedChain(deployment=DEPLOYMENT, rpc_url=NODE, public_url="https://pool.example")
PROCESSES = [
    "chain",
    "coordinator",
    "jobs",
    "pages",
    "origin",
    "relay",
    "trainer",
    "validator-1",
    "validator-2",
    "validator-3",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_pool_folder(tmp_path / "mine", PoolPlan())
    return tmp_path / "mine"


def test_create_pool_folder__devnet__has_keys_of_all_and_a_pool_that_can_be_created(tmp_path: Path):
    addresses = create_pool_folder(tmp_path / "mine", PoolPlan(validators=5))
    keys = sorted((tmp_path / "mine/keys").iterdir())
    assert [key.stem for key in keys] == ["arbiter", "operator", "trainer", *(f"validator-{i}" for i in range(1, 6))]
    assert {key.stem: load_key(key).address for key in keys} == addresses
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}
    terms, validators, params = read_pool_file(tmp_path / "mine/pool.toml", TOKEN)
    assert (terms.trainer, terms.arbiter) == (addresses["trainer"], addresses["arbiter"])
    assert validators == [addresses[f"validator-{i}"] for i in range(1, 6)]
    assert (params.name, params.quorum, terms.quorum) == ("mine", 3, 3)
    assert list_weaknesses(terms, validators, addresses["operator"]) == []


def test_create_pool_folder__settings__name_each_other(folder: Path):
    coordinator = CoordinatorConfig.load(folder / "coordinator.toml", {}, {})
    trainer = TrainerConfig.load(folder / "trainer.toml", {}, {})
    validators = [ValidatorConfig.load(folder / f"validator-{i}.toml", {}, {}) for i in (1, 2, 3)]
    assert (coordinator.port, coordinator.relays) == (8000, ("http://127.0.0.1:8002",))
    for member in (trainer, *validators):
        assert member.coordinator_url == coordinator.base_url
    for role in (coordinator, trainer, *validators):
        assert role.deployment == folder / DEPLOYMENT_FILE
        assert load_key(role.key_file)
    assert len({role.home for role in (coordinator, trainer, *validators)}) == 5
    commands = read_processes(folder)
    assert list(commands) == PROCESSES
    assert commands["origin"] == "origin run --root origin --port 8001"
    assert commands["relay"] == "relay run --root relay --upstream http://127.0.0.1:8001 --port 8002"
    assert trainer.origin_root == folder / "origin"


def test_create_pool_folder__tiny_model__learns_as_the_demo_does_and_another_as_the_paper(tmp_path: Path):
    create_pool_folder(tmp_path / "tiny", PoolPlan())
    create_pool_folder(tmp_path / "big", PoolPlan(model="Qwen/Qwen3-4B", device="cuda"))
    tiny, big = (TrainerConfig.load(tmp_path / name / "trainer.toml", {}, {}) for name in ("tiny", "big"))
    assert (tiny.model.path, tiny.optim.learning_rate, tiny.device) == (None, 5e-4, "cpu")
    assert (big.model.path, big.optim.learning_rate, big.device) == ("Qwen/Qwen3-4B", 1e-6, "cuda")


def test_create_pool_folder__chain_that_exists__has_its_contracts_and_no_devnet(tmp_path: Path):
    create_pool_folder(tmp_path / "mine", PoolPlan(chain=PUBLIC))
    assert Deployment.load(tmp_path / "mine" / DEPLOYMENT_FILE) == DEPLOYMENT
    assert list(read_processes(tmp_path / "mine")) == PROCESSES[1:]
    terms, _, params = read_pool_file(tmp_path / "mine/pool.toml", TOKEN)
    assert (terms.challenge_window, terms.veto_window, terms.unbond_window) == (86_400, 86_400, 604_800)
    assert (terms.epoch_length, params.epoch_seconds) == (3600, 3600)


def test_create_pool_folder__node_of_a_provider__is_in_settings_that_only_the_owner_reads(tmp_path: Path):
    folder = tmp_path / "mine"
    create_pool_folder(folder, PoolPlan(chain=replace(PUBLIC, deployment=replace(DEPLOYMENT, rpc_url=NODE))))
    kinds = {"coordinator": CoordinatorConfig, "trainer": TrainerConfig, "validator-1": ValidatorConfig}
    assert {kind.load(folder / f"{name}.toml", {}, {}).rpc_url for name, kind in kinds.items()} == {NODE}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "secret" not in (folder / DEPLOYMENT_FILE).read_text()


@pytest.mark.parametrize("content", ["file", "folder"])
def test_create_pool_folder__something_is_there__nothing_is_overwritten(tmp_path: Path, content: str):
    there = tmp_path / "mine"
    if content == "file":
        there.write_text("mine")
    else:
        there.mkdir()
        (there / "operator.key").write_text("mine")
    with pytest.raises(OperatorError) as caught:
        create_pool_folder(there, PoolPlan())
    assert caught.value.code == "folder_not_empty"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_new_folder__error_on_the_way__leaves_nothing(tmp_path: Path):
    def fail() -> None:
        with new_folder(tmp_path / "mine") as draft:
            (draft / "keys" / "operator.key").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_set_pool_number__number_of_the_chain__is_in_every_role_and_comments_stay(folder: Path):
    set_pool_number(folder, 7)
    pools = {file.stem: tomllib.loads(file.read_text()).get("pool") for file in folder.glob("*.toml")}
    assert {name for name, pool in pools.items() if pool == 7} == {
        "coordinator", "trainer", "validator-1", "validator-2", "validator-3",
    }  # fmt: skip
    assert (folder / "trainer.toml").read_text().startswith("# Settings of `covey trainer run`")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "no_processes"),
        ("x = ", "bad_processes"),
        ("", "bad_processes"),
        ("[processes]\n", "bad_processes"),
        ("[processes]\na = 1\n", "bad_processes"),
        ('[processes]\na = " "\n', "bad_processes"),
        ("processes = 3\n", "bad_processes"),
    ],
)
def test_read_processes__no_or_wrong_file__says_so(tmp_path: Path, text: str | None, code: str):
    if text is not None:
        (tmp_path / "processes.toml").write_text(text)
    with pytest.raises(OperatorError) as caught:
        read_processes(tmp_path)
    assert caught.value.code == code
