"""One stay of a worker in one pool: it ends at a stop signal, or when another pool is to be tried."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from covey.errors import TransientError
from covey.network.entry import Network
from covey.runtime.cycle import wait_or_stop
from covey.runtime.log import get_logger
from covey.runtime.settings import RoleSettings
from worker.context import Context
from worker.rounds import PoolSeat, Rounds

LOOK_SECONDS = 0.5
"""Seconds between two looks at whether the worker has work."""
JOIN_SECONDS = 300.0
"""Seconds for which joining a pool counts as useful. A pool that refuses for longer is left like an idle one."""


@dataclass(kw_only=True)
class Visit:
    """A stay in a pool. Times are on `clock`."""

    rounds: Rounds
    seat: PoolSeat
    clock: Callable[[], float]
    signalled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a stop signal."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the stay is to end, for whatever reason. Held leases are finished first."""
    ctx: Context | None = None
    """Set once the coordinator has registered the worker."""
    begun: float = field(init=False)
    useful_at: float = field(init=False)
    """Time at which the worker last had work, or was getting ready for it."""

    def __post_init__(self) -> None:
        self.begun = self.useful_at = self.clock()

    @property
    def is_stopped(self) -> bool:
        """Whether the worker is to end."""
        return self.signalled.is_set()

    @property
    def is_paid(self) -> bool:
        """Whether the pool can pay for another task, as far as is known."""
        return self.ctx is None or self.ctx.funds.is_enough

    async def try_join(self, join: Callable[[RoleSettings], Awaitable[Network]]) -> Network:
        """Join the pool. If it cannot be reached for too long, end the stay."""
        try:
            return await join(self.seat.config)
        except TransientError:
            if self.rounds.is_over(self.seat, self.clock(), begun=self.begun, useful_at=self.begun):
                self.over.set()
            raise
        finally:
            self.useful_at = self.clock()

    async def watch(self) -> None:
        """Set `over` when the stay is to end."""
        while not self.over.is_set():
            if await wait_or_stop(self.signalled, LOOK_SECONDS):
                self.over.set()
                return
            now = self.clock()
            is_joining = self.ctx is None and now - self.begun < JOIN_SECONDS
            if is_joining or (self.ctx is not None and _is_useful(self.ctx)):
                self.useful_at = now
            times = {"begun": self.begun, "useful_at": self.useful_at}
            if self.rounds.is_over(self.seat, now, **times, is_paid=self.is_paid):
                get_logger().info(
                    "leaving the pool for another one",
                    pool=self.seat.config.pool,
                    stayed=round(now - self.begun),
                    idle=round(now - self.useful_at),
                    paid=self.is_paid,
                )
                self.over.set()


def _is_useful(ctx: Context) -> bool:
    """Return whether the worker holds a lease, or gets a policy ready that the pool has published."""
    is_starting = ctx.loader.newest is not None and ctx.engine.policy_version is None
    return bool(ctx.leases.ids) or is_starting or ctx.network.policies.is_fetching
