"""A coordinator whose backup is older than an epoch on chain reads it back, and the next epoch follows it."""

import pytest

from covey.protocol.ids import PoolId
from tests.fakes.network import CoordinatorHarness
from tests.integration.coordinator.handing import FILE, decide, hand_in

pytestmark = pytest.mark.integration


async def work(harness: CoordinatorHarness, first: int) -> None:
    for number in (first, first + 1):
        async with harness.client("node") as node:
            await hand_in(harness, node, FILE + bytes([number]))
        await decide(harness)


async def settle(harness: CoordinatorHarness) -> None:
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()


async def test_follow__epoch_posted_after_the_backup__is_read_back_and_the_next_one_follows(
    harness: CoordinatorHarness,
):
    await work(harness, 0)
    with harness.ctx.database.read() as rows:
        cursor = rows.list_blocks()
    await settle(harness)
    ledger, pool = harness.chain.contracts.ledger, PoolId(harness.ctx.config.pool)
    assert ledger.epochs_of(pool) == 1
    with harness.ctx.database.write() as rows:  # The backup was made before the epoch was closed.
        rows.release_from_epoch(0)
        rows.clear_rewards(0)
        rows.delete_epoch(0)
        rows.replace_blocks(cursor)
    harness.ctx.chain.cursor = None
    await harness.follow()
    async with harness.client("stranger") as anybody:
        (epoch,) = (await anybody.get_status()).epochs
        assert (epoch.posted, epoch.leaf_count) == (True, 2)
        assert (await anybody.get_reward(harness.chain.address("contributor"), 0)).cumulative == 120
    await work(harness, 2)
    harness.chain.advance(1)
    await harness.follow()
    await settle(harness)
    assert ledger.epochs_of(pool) == 2
