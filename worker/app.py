"""The worker's composition root: the only file that names an engine; runs until a stop signal."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from covey.engines.base import Engine
from covey.engines.build import build_engine, require_engine
from covey.environments.base import Environment
from covey.errors import OperatorError
from covey.grading import build_grader
from covey.log import configure, get_logger
from covey.network import Network, join
from covey.protocol.ids import Address
from covey.runtime import Pace, keep_trying, run_forever, stop_signals
from covey.sandbox import Sandbox
from worker.config import WorkerConfig
from worker.outgoing import Outgoing


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything that the worker's loop is given."""

    config: WorkerConfig
    network: Network
    contributor: Address
    engine: Engine
    environment: Environment
    grade: Callable[[bytes], Sequence[float]]
    outgoing: Outgoing
    stop: asyncio.Event
    clock: Callable[[], float] = time.time


def build(
    config: WorkerConfig,
    network: Network,
    sandbox: Sandbox,
    stop: asyncio.Event,
    *,
    wrap: Callable[[Engine], Engine] = lambda e: e,
) -> Context:
    """Compose the worker; `wrap` puts another engine around the one that the settings name.  Raises OperatorError."""
    contributor = network.contracts.nodes.contributor_of(network.pool, network.wallet.address)
    if contributor is None:
        raise OperatorError(
            "unknown_node", f"no contributor vouches for {network.wallet.address}", fix="Run covey worker register"
        )
    require_engine(config.engine, network.params.verification, role="worker", device=config.device)
    dtype = network.params.model.compute_dtype
    engine = build_engine(config.engine, dtype=dtype, batch=config.batch, device=config.device, threads=config.threads)
    return Context(
        config=config,
        network=network,
        contributor=contributor,
        engine=wrap(engine),
        environment=network.load_environment(),
        grade=build_grader(sandbox),
        outgoing=Outgoing(config.home / "outgoing"),
        stop=stop,
    )


def run(config: WorkerConfig, *, wrap: Callable[[Engine], Engine] = lambda e: e) -> None:
    """Register with the coordinator and work until a stop signal; a task under way is finished first."""
    configure("worker", level=config.log_level)
    asyncio.run(_run(config, wrap))


async def _run(config: WorkerConfig, wrap: Callable[[Engine], Engine]) -> None:
    from worker.loop import cycle, send_heartbeat

    stop = asyncio.Event()
    grader = "covey.environments.grading:grade_json"
    with (
        stop_signals(stop),
        Sandbox(grader, seconds=config.grading_seconds, memory_bytes=config.grading_memory_bytes) as sandbox,
    ):
        network = await keep_trying(lambda: join(config), stop)
        if network is None:
            return
        ctx = await asyncio.to_thread(build, config, network, sandbox, stop, wrap=wrap)
        if await keep_trying(network.coordinator.register, stop) is None:
            return
        get_logger().info("worker runs", node=network.wallet.address, contributor=ctx.contributor)
        beat = asyncio.create_task(
            run_forever(send_heartbeat, ctx, stop=stop, pace=Pace(idle_wait_s=config.heartbeat_seconds))
        )
        await run_forever(cycle, ctx, stop=stop)
        await beat
        await network.close()
