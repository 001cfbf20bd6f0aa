"""Keeps the proofs of the contributor's rewards in the worker's home, so that they can be claimed without anybody.

The coordinator is asked once for each posted epoch. A worker whose pool has no epoch yet asks the chain only.
"""

import asyncio

from covey.chain.history import History
from covey.network.kept_rewards import fetch_reward, require_reward
from covey.protocol.promises import KEPT_EPOCHS
from covey.runtime.cycle import CycleResult
from covey.runtime.log import get_logger
from worker.context import Context

KEEP_SECONDS = 20.0
"""Seconds between two looks at whether an epoch was posted."""
EPOCHS_AT_ONCE = 8
"""Maximum number of epochs whose proofs one cycle fetches."""


async def keep_rewards(ctx: Context) -> CycleResult:
    """Fetch, check and keep the proofs of epochs that were posted since the newest kept one.

    Raises ProtocolError("bad_reward") if the coordinator's proof does not match the chain. It is asked again later.
    """
    network, kept = ctx.network, ctx.rewards
    epochs = await asyncio.to_thread(network.contracts.ledger.epochs_of, network.pool)
    missing = range(max(kept.seen + 1, epochs - KEPT_EPOCHS), epochs)[:EPOCHS_AT_ONCE]
    history = History(client=network.chain, contracts=network.contracts)
    for epoch in missing:
        posted = await asyncio.to_thread(history.find_epoch, network.pool, epoch)
        if posted is None:
            return CycleResult.RETRY
        if await asyncio.to_thread(network.contracts.ledger.is_posted, network.pool, posted.record):
            view = await fetch_reward(network.coordinator, ctx.contributor, epoch)
            if view is not None:
                require_reward(view, posted.record, network.contracts, pool=network.pool, contributor=ctx.contributor)
                await asyncio.to_thread(kept.keep, view)
                get_logger().info("reward kept", epoch=epoch, cumulative=view.cumulative)
        kept.seen = epoch
    return CycleResult.DONE if len(missing) == EPOCHS_AT_ONCE else CycleResult.IDLE
