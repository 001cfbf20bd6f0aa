"""Readiness of a folder, with a real HTTP server that answers as its own or another coordinator."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covey.chain.deployment import CONTRACTS, Deployment
from covey.errors import OperatorError
from covey.local import readiness as module
from covey.local.folder import create_pool_folder, write_processes
from covey.local.keeper import KeptProcess
from covey.local.plan import NamedChain, PoolPlan
from covey.local.readiness import ASK_SECONDS, Readiness, find_settings, find_url
from covey.runtime.http import find_free_ports, listen
from tests.fakes.pool import make_deployment

pytestmark = pytest.mark.unit
DEPLOYMENT = make_deployment(start_block=3, start_hash="0x" + "ab" * 32)
RUNNING: Any = SimpleNamespace(exit_code=None)
COORDINATOR = KeptProcess(name="coordinator", command="coordinator serve --config coordinator.toml", running=RUNNING)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that a slow machine delays is waited for."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Service:
    """A service on the coordinator's port. `answer` is None if it is not a coordinator."""

    def __init__(self, port: int) -> None:
        self.answer: dict[str, Any] | None = None
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path == "/v1/pool" and service.answer is not None
                body = json.dumps(service.answer).encode() if is_known else b"<html>it works</html>"
                self.send_response(200 if is_known else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def port() -> int:
    return find_free_ports(1)[0]


@pytest.fixture
def addresses(tmp_path: Path, port: int) -> dict[str, str]:
    chain = NamedChain(
        deployment=replace(DEPLOYMENT, rpc_url=None),
        rpc_url="http://127.0.0.1:1/v2/secret",
        public_url="https://pool.example",
    )
    return dict(create_pool_folder(tmp_path / "mine", PoolPlan(chain=chain, port=port)))


@pytest.fixture
def folder(tmp_path: Path, addresses: dict[str, str]) -> Path:
    return tmp_path / "mine"


@pytest.fixture
def service(port: int) -> Iterator[Service]:
    with closing(Service(port)) as made:
        yield made


def describe(operator: str, *, pool: int = 1, deployment: Deployment = DEPLOYMENT) -> dict[str, Any]:
    """Return a coordinator's answer to GET /v1/pool."""
    contracts = asdict(deployment)
    names = {name: contracts[field] for name, field in CONTRACTS.items()}
    return {
        "pool": pool,
        "params": "{}",
        "params_hash": f"0x{'0' * 64}",
        "terms": {},
        "requirements": {
            "engine": "any",
            "compute_dtype": "float32",
            "hardware": "any",
            "execution_contracts": {},
            "max_tokens": 72,
        },
        "operator": operator,
        "signer": operator,
        "chain_id": deployment.chain_id,
        "contracts": names,
        "token": deployment.token,
        "start_block": deployment.start_block,
        "start_hash": deployment.start_hash,
        "relays": [],
    }


def test_is_reached__the_folders_own_coordinator__once_it_answers(folder: Path, addresses, port: int):
    clock = Clock()
    readiness = Readiness(folder, [COORDINATOR], clock=clock)
    readiness.require_free_ports()
    assert not readiness.is_reached()
    with closing(Service(port)) as service:
        service.answer = describe(addresses["operator"])
        assert not readiness.is_reached(), "it has looked just now"
        clock.now += ASK_SECONDS
        assert readiness.is_reached()


def answer_of_another(addresses: dict[str, str], what: str) -> dict[str, Any] | None:
    operator = addresses["operator"]
    return {
        "no coordinator": None,
        "another pool": describe(operator, pool=2),
        "another operator": describe(addresses["trainer"]),
        "another chain": describe(operator, deployment=replace(DEPLOYMENT, chain_id=1)),
        "another devnet": describe(operator, deployment=replace(DEPLOYMENT, start_hash="0x" + "cd" * 32)),
        "other contracts": describe(operator, deployment=replace(DEPLOYMENT, epoch_ledger=DEPLOYMENT.token)),
        "no contracts": describe(operator) | {"contracts": {}},
    }[what]


@pytest.mark.parametrize(
    "what",
    [
        "no coordinator",
        "another pool",
        "another operator",
        "another chain",
        "another devnet",
        "other contracts",
        "no contracts",
    ],
)
def test_is_reached__another_service__is_an_error_that_names_the_port(
    folder: Path, addresses, port: int, service: Service, what: str
):
    service.answer = answer_of_another(addresses, what)
    with pytest.raises(OperatorError) as caught:
        Readiness(folder, [COORDINATOR]).is_reached()
    assert caught.value.code == "other_coordinator"
    assert f"port {port}" in caught.value.message
    assert f"change the port in {folder}: coordinator.toml (port)" in caught.value.fix


def test_require_free_ports__taken__is_an_error_before_anything_starts(folder: Path, port: int):
    readiness = Readiness(folder, [COORDINATOR])
    with listen("127.0.0.1", port), pytest.raises(OperatorError) as caught:
        readiness.require_free_ports()
    assert caught.value.code == "address_in_use"
    assert str(port) in caught.value.message
    assert f"change the port in {folder}: coordinator.toml (port)" in caught.value.fix
    readiness.require_free_ports()


@pytest.mark.parametrize(
    "command",
    [
        'origin run --root "my origin" --port {port}',
        "relay run --upstream http://127.0.0.1:1 --root relay --host 127.0.0.1 --port={port}",
        "devnet up --folder chain --port {port}",
    ],
)
def test_require_free_ports__in_a_command__is_an_error_that_names_its_file(tmp_path: Path, port: int, command: str):
    kept = KeptProcess(name="policies", command=command.format(port=port))
    write_processes(tmp_path / "processes.toml", {kept.name: kept.command})
    readiness = Readiness(tmp_path, [kept])
    readiness.require_free_ports()
    with listen("127.0.0.1", port), pytest.raises(OperatorError) as caught:
        readiness.require_free_ports()
    assert caught.value.code == "address_in_use"
    assert f"127.0.0.1:{port}" in caught.value.message
    assert f"{tmp_path}: processes.toml (policies)" in caught.value.fix


@pytest.mark.parametrize("port", ["", "many", "70000"])
def test_require_free_ports__not_a_port__is_left_to_the_command(tmp_path: Path, port: str):
    Readiness(tmp_path, [KeptProcess(name="origin", command=f"origin run --port {port}")]).require_free_ports()


@pytest.mark.parametrize(
    ("command", "event"),
    [
        ("worker run --config worker.toml", "worker started"),
        ("worker cheat quantized", "worker started"),
        ("trainer run --config trainer.toml", "trainer started"),
        ("validator run --config validator-1.toml", "validator started"),
        ("origin run --root origin", "origin serves policies"),
        ("relay run --root relay", "relay serves policies"),
    ],
)
def test_is_reached__role__only_once_it_says_that_it_works(tmp_path: Path, command: str, event: str):
    log, clock = tmp_path / "role.log", Clock()
    said = json.dumps({"role": command.split(maxsplit=1)[0], "event": event}) + "\n"
    log.write_text(said)  # by an earlier process
    kept = KeptProcess(name="role", command=command)
    readiness = Readiness(tmp_path, [kept], clock=clock)

    def look() -> bool:
        clock.now += ASK_SECONDS
        return readiness.is_reached()

    assert readiness.awaited == ("role",)
    assert not look(), "it has not been started"
    running: Any = SimpleNamespace(log=log, begun=len(said), exit_code=None)
    kept.running = running
    assert not look(), "it has said nothing yet"
    assert readiness.awaited == ("role",)
    log.write_text(said + said)
    assert look()
    assert readiness.awaited == ()
    running.exit_code = 1
    assert not look(), "it has failed"
    running.exit_code = 0
    assert look(), "it has done its work"


def test_is_reached__one_that_says_nothing__only_while_it_runs(tmp_path: Path):
    clock = Clock()
    running: Any = SimpleNamespace(exit_code=1)
    jobs = KeptProcess(name="jobs", command="coordinator jobs --config coordinator.toml", running=running)
    readiness = Readiness(tmp_path, [jobs], clock=clock)
    assert not readiness.is_reached()
    assert readiness.awaited == ("jobs",)
    running.exit_code = None
    clock.now += ASK_SECONDS
    assert readiness.is_reached()


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000")],
)
def test_find_url__any_host__is_asked_on_this_machine(folder: Path, host: str, url: str):
    settings = find_settings(folder)
    assert settings is not None
    changed = settings.model_copy(update={"host": host, "port": 8000, "public_url": "https://pool.example"})
    assert find_url(changed) == url


def test_find_settings__variables_of_commands__change_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch):
    before = find_settings(folder)
    monkeypatch.setenv("COVEY_KEY_FILE", "a-person.key")
    monkeypatch.setenv("COVEY_POOL", "77")
    monkeypatch.setenv("COVEY_RPC_URL", "http://other-chain:8545")
    assert find_settings(folder) == before


def test_is_reached__one_was_given_up__is_not_waited_for(tmp_path: Path):
    failed: Any = SimpleNamespace(exit_code=1)
    kept = [
        KeptProcess(name="origin", command="wallet show", running=RUNNING),
        KeptProcess(name="validator", command="validator run", running=failed, is_given_up=True),
    ]
    assert Readiness(tmp_path, kept, clock=Clock()).is_reached()
