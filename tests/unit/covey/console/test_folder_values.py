from pathlib import Path

import pytest

from covey.console.folder_values import build_local_url, has_role_settings, read_folder_values
from covey.errors import OperatorError
from covey.local.folder import create_pool_folder
from covey.local.plan import PoolPlan

pytestmark = pytest.mark.unit
WORKER = 'home = "w"\npool = 3\ndeployment = "deployment.json"\nkey_file = "keys/node-1.key"\n'


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    text = WORKER + 'coordinator_url = "https://pool.example"\nrpc_url = "http://node/key"\nbatch = 8\n'
    (tmp_path / "worker-1.toml").write_text(text)
    return tmp_path


def test_read_folder_values__folder_of_init_pool__is_the_operators(tmp_path: Path):
    create_pool_folder(tmp_path / "p", PoolPlan(port=8100))
    place = read_folder_values(tmp_path / "p")
    assert (place.kind, place.pool, place.rpc_url) == ("operator", 1, None)
    assert place.deployment == tmp_path / "p/chain/deployment.json"
    assert place.key_file == tmp_path / "p/keys/operator.key"
    assert place.coordinator_url == "http://127.0.0.1:8100"


def test_read_folder_values__folder_of_join__is_the_contributors(worker: Path):
    place = read_folder_values(worker)
    assert (place.kind, place.pool, place.rpc_url) == ("contributor", 3, "http://node/key")
    assert place.key_file == worker / "keys/contributor.key"
    assert (place.deployment, place.coordinator_url) == (worker / "deployment.json", "https://pool.example")


def test_read_folder_values__variables_of_commands__do_not_change_it(worker: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"POOL": "9", "KEY_FILE": "k", "COORDINATOR_URL": "http://x", "RPC_URL": "http://y"}.items():
        monkeypatch.setenv(f"COVEY_{name}", value)
    assert read_folder_values(worker).pool == 3
    assert read_folder_values(worker).coordinator_url == "https://pool.example"


def test_read_folder_values__address_of_the_coordinator__is_the_one_that_it_listens_on(tmp_path: Path, monkeypatch):
    text = WORKER.replace("node-1", "operator") + 'host = "::"\nport = 9\n'
    (tmp_path / "coordinator.toml").write_text(text)
    assert read_folder_values(tmp_path).coordinator_url == "http://[::1]:9"
    monkeypatch.setenv("COVEY_PORT", "10")
    assert read_folder_values(tmp_path).coordinator_url == "http://[::1]:10"
    assert build_local_url("0.0.0.0", 1) == "http://127.0.0.1:1"


@pytest.mark.parametrize(("name", "kind"), [("validator-2", "validator"), ("trainer", "trainer")])
def test_read_folder_values__folder_of_one_role__is_that_roles(tmp_path: Path, name: str, kind: str):
    (tmp_path / f"{name}.toml").write_text(WORKER)
    assert (read_folder_values(tmp_path).kind, read_folder_values(tmp_path).key_file) == (
        kind,
        tmp_path / "keys/node-1.key",
    )


def test_read_folder_values__no_settings_or_wrong_ones__is_refused(tmp_path: Path):
    assert not has_role_settings(tmp_path)
    with pytest.raises(OperatorError, match=r"no_folder_settings: .*covey init pool or covey join"):
        read_folder_values(tmp_path)
    (tmp_path / "worker.toml").write_text("pool = 0")
    assert has_role_settings(tmp_path)
    with pytest.raises(OperatorError, match="bad_settings"):
        read_folder_values(tmp_path)
