"""Keeps the proofs of the contributor's rewards in the worker's home, so that they can be claimed without anybody.

The coordinator is asked for each posted epoch. If it says that the contributor has earned nothing, the epoch's file has
the last word, because its hash is on chain. A worker whose pool has no epoch yet asks the chain only.
"""

import asyncio

from covey.chain.events import EpochPosted
from covey.chain.history import History
from covey.errors import CoveyError, ProtocolError, TransientError
from covey.network.kept_rewards import build_reward, fetch_reward, require_reward
from covey.protocol.api.common import MAX_EPOCH_BYTES
from covey.protocol.api.public import RewardView
from covey.protocol.epoch_file import EpochFile
from covey.protocol.object_keys import build_epoch_key
from covey.protocol.promises import KEPT_EPOCHS
from covey.runtime.cycle import CycleResult
from covey.runtime.log import get_logger
from worker.context import Context

KEEP_SECONDS = 20.0
"""Seconds between two looks at whether an epoch was posted."""
EPOCHS_AT_ONCE = 8
"""Maximum number of epochs whose proofs one cycle fetches."""


async def keep_rewards(ctx: Context) -> CycleResult:
    """Fetch, check and keep the proofs of posted epochs, newest first, because the newest one claims everything.

    An epoch is done when its proof is kept, its file shows no reward, or it is disabled. One of which the coordinator
    gives neither proof nor file is asked for again, and delays no other. Raises the first such error at the end.
    """
    network, kept = ctx.network, ctx.rewards
    epochs = await asyncio.to_thread(network.contracts.ledger.epochs_of, network.pool)
    missing = kept.list_missing(range(max(0, epochs - KEPT_EPOCHS), epochs))[:EPOCHS_AT_ONCE]
    history = History(client=network.chain, contracts=network.contracts)
    failures: list[CoveyError] = []
    for epoch in missing:
        posted = await asyncio.to_thread(history.find_epoch, network.pool, epoch)
        if posted is None:
            return CycleResult.RETRY
        try:
            if await asyncio.to_thread(network.contracts.ledger.is_posted, network.pool, posted.record):
                await _keep_proof(ctx, posted)
        except (ProtocolError, TransientError) as error:
            failures.append(error)
            kept.postpone(epoch)
        else:
            kept.mark_done(epoch)
    if failures:
        raise failures[0]
    return CycleResult.DONE if len(missing) == EPOCHS_AT_ONCE else CycleResult.IDLE


async def _keep_proof(ctx: Context, posted: EpochPosted) -> None:
    """Keep the proof of a posted epoch. Raises ProtocolError or TransientError if nobody gives proof or file."""
    network, contracts, contributor = ctx.network, ctx.network.contracts, ctx.contributor
    view = await fetch_reward(network.coordinator, contributor, posted.epoch)
    if view is None:  # That is a claim without a proof.
        view = await _find_in_file(ctx, posted)
    if view is not None:
        require_reward(view, posted.record, contracts, pool=network.pool, contributor=contributor)
        await asyncio.to_thread(ctx.rewards.keep, view)
        get_logger().info("reward kept", epoch=posted.epoch, cumulative=view.cumulative)


async def _find_in_file(ctx: Context, posted: EpochPosted) -> RewardView | None:
    """Return the contributor's reward by the file of an epoch. None if the file has none."""
    network, deployment = ctx.network, ctx.network.contracts.deployment
    key = build_epoch_key(network.pool, posted.header.data_hash)
    data = await network.coordinator.get_public(key, max_bytes=MAX_EPOCH_BYTES)

    def find() -> RewardView | None:
        file = EpochFile.from_bytes(data, posted.header)
        return build_reward(file, ctx.contributor, chain=deployment.chain_id, ledger=network.contracts.ledger.address)

    return await asyncio.to_thread(find)
