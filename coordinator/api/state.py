"""The state that the routes of one API process share: its context, caches, buffers and batches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from coordinator.api.process.cached_page import CachedPage
from coordinator.api.process.changes import Changes, FactSignal
from coordinator.api.process.collecting import build_collections
from coordinator.api.process.heartbeat_buffer import HeartbeatBuffer
from coordinator.api.process.lease_waiters import LeaseWaiters
from coordinator.api.process.long_poll import LongPolls
from coordinator.api.process.members import Members
from coordinator.api.process.meters import Meters
from coordinator.api.process.nonces import MemoryNonces, Nonces, RedisNonces
from coordinator.api.process.request_batches import RequestBatches
from coordinator.api.process.reward_proofs import RewardProofs
from coordinator.api.process.status_page import render_status
from coordinator.api.process.submission_intake import Intake
from coordinator.api.process.turn_intake import TurnIntake
from coordinator.context import Context
from coordinator.domain.tasks import LeaseRequest
from coordinator.domain.turns import TURNS
from covey.errors import TransientError
from covey.protocol.api.worker import TaskOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    """State of one API process. Example: `async with state.run(): ...` keeps it up to date within the block."""

    ctx: Context
    members: Members
    nonces: Nonces
    changes: Changes
    turns: FactSignal
    """Signal that there may be work for validators."""
    offers: LeaseWaiters
    heartbeat_buffer: HeartbeatBuffer
    collections: RequestBatches[LeaseRequest, TaskOrder | None]
    """Batches of leases that nodes collect."""
    intake: Intake
    turn_intake: TurnIntake
    polls: LongPolls
    """Open long polls of validators."""
    status: CachedPage
    reward_proofs: RewardProofs

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Load the registered nodes, and run the background tasks of this process within the block."""
        await self.members.load()
        loops = (self.changes.run(), self.heartbeat_buffer.run(), self._end_polls())
        tasks = [asyncio.create_task(loop) for loop in loops]
        for task in tasks:
            task.add_done_callback(lambda _: self.ctx.stop.set())  # A task that ends early has failed.
        tasks.append(asyncio.create_task(self._prepare_pages()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.nonces.close()

    async def _prepare_pages(self) -> None:
        """Compute the pages that take long on a large pool before anybody requests them."""
        with suppress(TransientError):
            await self.status.prepare()

    async def _end_polls(self) -> None:
        """End the long polls of nodes once the process stops."""
        await self.ctx.stop.wait()
        self.offers.end()


def build_state(ctx: Context, meters: Meters) -> ApiState:
    """Return the state of a new API process."""
    changes = Changes(ctx.database, poll_s=ctx.config.poll_seconds)
    offers = LeaseWaiters(changes, note_count=meters.polls.set)
    return ApiState(
        ctx=ctx,
        members=Members(
            ctx.database,
            ctx.chain,
            pool=ctx.config.pool,
            trainer=ctx.terms.trainer,
            operators=(ctx.operator, ctx.signer.address),
        ),
        nonces=_open_nonces(ctx),
        changes=changes,
        turns=FactSignal(changes, TURNS),
        offers=offers,
        heartbeat_buffer=HeartbeatBuffer(ctx),
        collections=build_collections(ctx),
        intake=Intake(ctx),
        turn_intake=TurnIntake(ctx),
        polls=LongPolls(),
        status=CachedPage(ctx.database, partial(render_status, ctx)),
        reward_proofs=RewardProofs(ctx),
    )


def _open_nonces(ctx: Context) -> Nonces:
    url, ledger = ctx.config.nonces_url, ctx.ledger
    return RedisNonces(url, f"{ledger.chain_id}/{ledger.address}/{ledger.pool}") if url else MemoryNonces(ctx.clock())
