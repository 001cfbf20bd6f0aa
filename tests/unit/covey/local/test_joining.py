from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.chain import json_rpc
from covey.chain.deployment import CONTRACTS, Deployment
from covey.chain.structs import PoolState, PoolTerms
from covey.chain.wallet import load_key
from covey.errors import OperatorError, ProtocolError
from covey.local import joining
from covey.local.folder import read_processes
from covey.local.joining import CheckedPool, check_pool, create_worker_folder
from covey.protocol.api.public import PoolView
from covey.protocol.eip712 import DOMAIN_VERSION
from covey.protocol.params import EnvironmentParams, PoolParams
from tests.fakes.contracts import encode_domain
from tests.fakes.pool import make_address
from worker.config import WorkerConfig

pytestmark = pytest.mark.unit
PARAMS = PoolParams(name="p", environment=EnvironmentParams(kind="reasoning_gym", options={"name": "x"}))
DEPLOYMENT = Deployment(
    chain_id=31337,
    rpc_url="http://node:8545",
    start_block=3,
    token=make_address("token"),
    **{name: make_address(name) for name in CONTRACTS.values()},
)

TERMS = PoolTerms(
    trainer=make_address("trainer"),
    arbiter=make_address("arbiter"),
    token=DEPLOYMENT.token,
    params_hash=PARAMS.compute_hash(),
    reward_per_million=3_000_000,
    min_stake=100,
    slash_amount=60,
    quorum=2,
    challenge_window=10,
    veto_window=10,
    unbond_window=20,
)


def make_view(**changes) -> PoolView:
    values = {
        "pool": 1,
        "params": PARAMS.to_text(),
        "params_hash": PARAMS.compute_hash(),
        "terms": {},
        "requirements": {
            "engine": "any", "compute_dtype": "float32", "hardware": "any", "execution_contracts": {},
            "max_tokens": 520,
        },
        "operator": make_address("operator"),
        "signer": make_address("operator"),
        "chain_id": 31337,
        "contracts": DEPLOYMENT.get_contracts(),
        "token": DEPLOYMENT.token,
        "start_block": 3,
        "relays": (),
    }  # fmt: skip
    return PoolView(**(values | changes))


class Node:
    """The node of a chain whose content the test chooses."""

    def __init__(self, held: SimpleNamespace, url: str) -> None:
        self._held, self.rpc_url = held, url

    def chain_id(self) -> int:
        return self._held.id

    def call(self, *_: object) -> bytes:
        return encode_domain(self._held.version)

    def require_each(self, require: Callable[["Node"], None]) -> None:
        require(self)


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a chain whose content the test chooses."""
    held = SimpleNamespace(id=31337, version=DOMAIN_VERSION, state=PoolState.ACTIVE, terms=TERMS)
    pools = SimpleNamespace(
        state_of=lambda _: held.state, get_terms=lambda _: held.terms, operator_of=lambda _: make_address("operator")
    )
    monkeypatch.setattr(
        json_rpc,
        "ChainClient",
        lambda url: Node(held, url),
    )
    monkeypatch.setattr(joining, "Contracts", lambda *_: SimpleNamespace(pools=pools))
    return held


@pytest.fixture
def pool(chain: SimpleNamespace) -> CheckedPool:
    return check_pool(make_view(), "http://coordinator:8000/", DEPLOYMENT)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"id": 1}, "wrong_chain"),
        ({"version": "1"}, "old_deployment"),
        ({"state": PoolState.ENDED}, "pool_not_active"),
        ({"terms": replace(TERMS, params_hash="0x" + "12" * 32)}, "bad_params"),
    ],
)
def test_check_pool__chain_says_otherwise__is_refused(chain: SimpleNamespace, changes: dict[str, object], code: str):
    vars(chain).update(changes)
    with pytest.raises((OperatorError, ProtocolError)) as caught:
        check_pool(make_view(), "http://coordinator:8000", DEPLOYMENT)
    assert caught.value.code == code


def test_create_worker_folder__one_device__is_a_worker_with_keys_of_its_own(tmp_path: Path, pool: CheckedPool):
    (file,) = create_worker_folder(tmp_path / "mine", pool, ["cuda"], 1)
    config = WorkerConfig.load(file, {}, {})
    assert file == tmp_path / "mine/worker.toml"
    assert (config.device, config.pool, config.coordinator_url) == ("cuda", 1, "http://coordinator:8000")
    assert Deployment.load(config.deployment) == DEPLOYMENT
    assert load_key(config.key_file).address != load_key(tmp_path / "mine/keys/contributor.key").address
    assert read_processes(tmp_path / "mine") == {"worker": "worker run --config worker.toml"}


def test_create_worker_folder__node_of_a_provider__is_in_settings_that_only_the_owner_reads(
    tmp_path: Path, pool: CheckedPool
):
    node = "https://node.example/v2/secret"
    (file,) = create_worker_folder(
        tmp_path / "mine", replace(pool, deployment=replace(DEPLOYMENT, rpc_url=node)), ["cpu"], 1
    )
    assert WorkerConfig.load(file, {}, {}).rpc_url == node
    assert "secret" not in (tmp_path / "mine/deployment.json").read_text()
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700


def test_create_worker_folder__three_gpus__are_three_workers(tmp_path: Path, pool: CheckedPool):
    files = create_worker_folder(tmp_path / "mine", pool, ["cuda:0", "cuda:1", "cuda:2"], 1)
    configs = [WorkerConfig.load(file, {}, {}) for file in files]
    assert [config.device for config in configs] == ["cuda:0", "cuda:1", "cuda:2"]
    assert len({load_key(config.key_file).address for config in configs}) == 3
    assert len({config.home for config in configs}) == 3
    assert list(read_processes(tmp_path / "mine")) == ["worker-1", "worker-2", "worker-3"]


def test_create_worker_folder__gpus_together__share_each_layer(tmp_path: Path, pool: CheckedPool):
    (file,) = create_worker_folder(tmp_path / "mine", pool, ["cuda"], 4)
    assert WorkerConfig.load(file, {}, {}).vllm.tensor_parallel_size == 4


def test_create_worker_folder__something_is_there__nothing_is_overwritten(tmp_path: Path, pool: CheckedPool):
    (tmp_path / "contributor.key").write_text("mine")
    with pytest.raises(OperatorError, match="folder_not_empty"):
        create_worker_folder(tmp_path, pool, ["cpu"], 1)
    assert [path.name for path in tmp_path.iterdir()] == ["contributor.key"]
