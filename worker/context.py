"""The context that every cycle of the worker receives."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from covey.engines.base import Engine
from covey.environments.base import Environment, Grader
from covey.network.entry import Network
from covey.network.kept_rewards import KeptRewards
from covey.network.policy_loader import PolicyLoader
from covey.protocol.ids import Address
from worker.config import WorkerConfig
from worker.engine_health import EngineHealth
from worker.leases import LeaseQueue
from worker.shutdown import Shutdown
from worker.submission_store import SubmissionStore


@dataclass(slots=True, kw_only=True)
class PoolFunds:
    """What the worker knows about the pool's money; see `worker.pool_funds`."""

    is_enough: bool = True
    """Whether the pool can pay for another task."""
    waiting_units: int = 0
    """Units of this worker that were countersigned since the newest posted epoch."""
    epochs: int = -1
    """Number of posted epochs when `newest_reward` was read. -1: it has not been read."""
    newest_reward: int = 0
    """Reward of the newest posted epoch, in the smallest unit of the pool's token."""
    newest_fees: int = 0
    """Part of `newest_reward` that pays for verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings, connections and state that the worker's cycles share."""

    config: WorkerConfig
    network: Network
    contributor: Address
    instance: str
    """Id of this worker in its heartbeats and claims; see `worker.instance`."""
    engine: Engine
    contract: str
    """Digest of the engine's execution contract. Empty: the worker works in the calibrated lane."""
    environment: Environment
    grade: Grader
    engine_threads: ThreadPoolExecutor
    """Threads for engine calls, one per task that the engine can run at once."""
    loader: PolicyLoader
    leases: LeaseQueue
    health: EngineHealth
    submissions: SubmissionStore
    rewards: KeptRewards
    shutdown: Shutdown
    stop: asyncio.Event
    clock: Callable[[], float] = time.time
    funds: PoolFunds = field(default_factory=PoolFunds)
