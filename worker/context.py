"""Everything that the worker's cycles are given."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from covey.engines.base import Engine
from covey.environments.base import Environment, Grader
from covey.network.entry import Network
from covey.protocol.ids import Address
from worker.config import WorkerConfig
from worker.leases import Pipeline
from worker.submission_store import SubmissionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything that the worker's loop is given."""

    config: WorkerConfig
    network: Network
    contributor: Address
    instance: str
    """Name of this worker in its heartbeats and claims; see `worker.instance`."""
    engine: Engine
    environment: Environment
    grade: Grader
    engine_threads: ThreadPoolExecutor
    """One for each task that the engine may work on."""
    pipeline: Pipeline
    outgoing: SubmissionStore
    stop: asyncio.Event
    clock: Callable[[], float] = time.time
