"""A coordinator with its API and a chain, one for each module; every test finds its rows empty and step 0 open."""

from collections.abc import Iterator

import pytest

from covey.chain.structs import BondKind
from covey.protocol.ids import Step
from covey.runtime.http import find_free_ports
from covey.shardcast.server import build_server
from covey.shardcast.store import ShardStore, add_policy
from tests.e2e.walking import Server
from tests.fakes.network import MIN_STAKE, Office, create_pool, open_office, reset
from tests.fakes.pool import make_params
from tests.integration.chain.conftest import Chain, running

__all__ = ["running"]


MAX_FILE = 24_576


@pytest.fixture(scope="module")
def standing(running: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    params = make_params(max_submission_bytes=MAX_FILE, lease_seconds=30, max_staleness=1, epoch_leaves=2)
    pool = create_pool(running, params)
    with open_office(running, pool, tmp_path_factory.mktemp("office")) as office:
        yield office


@pytest.fixture
def office(standing: Office) -> Iterator[Office]:
    snapshot = standing.chain.client.request("evm_snapshot")
    reset(standing)
    yield standing
    standing.chain.client.request("evm_revert", snapshot)
    standing.chain.client.request("anvil_setNextBlockBaseFeePerGas", hex(10**9))


@pytest.fixture
def unbond(office: Office):
    """The contributor takes so much of its stake away that it backs no node any more."""
    stakes, pool = office.chain.contracts.stakes, office.ctx.ledger.pool
    return lambda: office.chain.send("contributor", stakes.unbond(pool, BondKind.CONTRIBUTOR, 2 * MIN_STAKE + 1))


@pytest.fixture
def relay(office: Office, tmp_path):
    """A server with policy 1, which the chain holds."""
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "model.safetensors").write_bytes(b"1" * 4096)
    store, (port,) = ShardStore(tmp_path / "served"), find_free_ports(1)
    pool = office.ctx.ledger.pool
    manifest = add_policy(store, policy, pool=pool, step=1)
    office.chain.send("trainer", office.chain.contracts.policies.publish(pool, Step(1), manifest.compute_hash()))
    server = Server(build_server(store), port)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()
