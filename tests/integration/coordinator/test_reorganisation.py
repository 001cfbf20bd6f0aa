"""A reorganisation removes a posted epoch. The epoch is posted again, once, and the next epochs follow."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.protocol.ids import PoolId
from tests.fakes.network import CoordinatorHarness, create_pool, open_harness
from tests.fakes.pool import make_params
from tests.integration.chain.conftest import open_chain
from tests.integration.coordinator.handing import FILE, decide, hand_in

pytestmark = pytest.mark.integration
HANG_S = 300
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


@pytest.fixture(params=[pytest.param("latest", marks=pytest.mark.full), "safe"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CoordinatorHarness]:
    """A coordinator on its own chain, because Anvil prunes old states that a deep reorganisation requires."""
    with open_chain() as chain:
        pool = create_pool(chain, make_params(max_submission_bytes=24_576, max_staleness=1, epoch_leaves=2))
        chain.client.request("anvil_mine", hex(100))
        with open_harness(chain, pool, tmp_path / "coordinator", finality=request.param) as opened:
            yield opened


async def work(harness: CoordinatorHarness, first: int) -> None:
    """Two accepted submissions that are due for an epoch."""
    for i in (first, first + 1):
        async with harness.client("node") as node:
            await hand_in(harness, node, FILE + bytes([i]))
        await decide(harness)


async def settle_until(harness: CoordinatorHarness, epochs: int) -> None:
    """Run jobs and loop while blocks are mined, until that number of epochs is on chain and the coordinator has seen
    them.
    """
    pool, deadline = PoolId(harness.ctx.config.pool), time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        harness.run_job("settle")
        await harness.follow()
        harness.chain.advance(1)
        with harness.ctx.database.read() as rows:
            known = sum(epoch.posted_block is not None for epoch in rows.list_epochs())
        if known == harness.chain.contracts.ledger.epochs_of(pool) == epochs:
            return
    raise AssertionError(f"{harness.chain.contracts.ledger.epochs_of(pool)} epochs on chain, {known} known")


@pytest.mark.parametrize(
    "depth", [pytest.param(1, marks=pytest.mark.full), pytest.param(4, marks=pytest.mark.full), 64]
)
async def test_settlement__posted_epoch_is_reorganised_away__is_posted_again_once(
    fresh: CoordinatorHarness, depth: int
):
    harness, ledger, pool = fresh, fresh.chain.contracts.ledger, PoolId(fresh.ctx.config.pool)
    client, operator = harness.chain.client, harness.ctx.signer.address
    await harness.follow()
    await work(harness, 0)
    harness.run_job("settle")
    await harness.follow()
    assert ledger.epochs_of(pool) == 1
    head, sent = ledger.head_of(pool), client.count_transactions(operator)
    client.request("anvil_mine", hex(depth - 1))
    await harness.follow()

    client.request("anvil_reorg", depth, [])
    assert ledger.epochs_of(pool) == 0
    await settle_until(harness, 1)
    assert ledger.head_of(pool) == head
    assert client.count_transactions(operator) == sent

    await work(harness, 2)
    await settle_until(harness, 2)
