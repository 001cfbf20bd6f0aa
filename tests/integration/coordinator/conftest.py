"""A coordinator with its API and a chain, one per module. Every test starts with empty tables and step 0 open."""

from collections.abc import Iterator

import numpy as np
import pytest

from covey.chain.structs import BondKind
from covey.protocol.ids import Step
from covey.runtime.http import find_free_ports
from covey.shardcast.offering import Export
from covey.shardcast.origin import OriginSource
from covey.shardcast.piece_server import PieceServer
from tests.e2e.walk import Server
from tests.fakes.network import MIN_STAKE, CoordinatorHarness, create_pool, open_harness, reset
from tests.fakes.offered_policies import build_offering, write_export
from tests.fakes.pool import make_contract, make_params
from tests.fakes.transaction_watch import calls_while_writing
from tests.integration.chain.conftest import Chain, running

__all__ = ["calls_while_writing", "running"]


MAX_FILE = 24_576


@pytest.fixture(scope="module")
def standing(running: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorHarness]:
    rules = make_params().verification.model_copy(update={"contracts": (make_contract(),)})
    params = make_params(
        max_submission_bytes=MAX_FILE,
        lease_seconds=30,
        max_staleness=1,
        epoch_leaves=2,
        verification=rules.model_dump(),  # both lanes; the other tests are in the calibrated one
    )
    pool = create_pool(running, params)
    with open_harness(running, pool, tmp_path_factory.mktemp("coordinator")) as harness:
        yield harness


@pytest.fixture
def harness(standing: CoordinatorHarness) -> Iterator[CoordinatorHarness]:
    snapshot = standing.chain.client.request("evm_snapshot")
    reset(standing)
    yield standing
    standing.chain.client.request("evm_revert", snapshot)
    standing.chain.client.request("anvil_setNextBlockBaseFeePerGas", hex(10**9))


@pytest.fixture
def unbond(harness: CoordinatorHarness):
    """Unbond so much of the contributor's stake that it no longer covers a node."""
    stakes, pool = harness.chain.contracts.stakes, harness.ctx.ledger.pool
    return lambda: harness.chain.send("contributor", stakes.unbond(pool, BondKind.CONTRIBUTOR, 2 * MIN_STAKE + 1))


@pytest.fixture
def relay(harness: CoordinatorHarness, tmp_path):
    """A relay with policy 1, which is published on chain."""
    pool, (port,) = harness.ctx.ledger.pool, find_free_ports(1)
    offering = build_offering(tmp_path / "served", pool=pool)
    policy = write_export(tmp_path / "policy", {"weight": np.ones(2048, np.uint16)})
    record = offering.describe(policy, Step(1), harness.chain.contracts.policies.policy_of(pool, Step(0)))
    offering.offer(Export(policy, record), None)
    harness.chain.send("trainer", harness.chain.contracts.policies.publish(pool, Step(1), record.compute_hash()))
    server = Server(PieceServer(OriginSource(offering.store)), port)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()
