"""Composes and runs the worker until a stop signal. It is the worker's only module that selects an engine."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from prometheus_client.core import Metric

from covey.chain.amounts import read_unit
from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.json_rpc import open_node
from covey.engines.base import Engine
from covey.engines.cpu_tuning import keep_memory
from covey.engines.factory import EnginePlan, plan_engine, run_in_lane
from covey.engines.vllm.vllm_options import VllmOptions
from covey.environments.base import Environment, Grader
from covey.environments.grader import GradingPool
from covey.errors import OperatorError
from covey.network.entry import Network, join
from covey.network.kept_rewards import REWARDS_FOLDER, KeptRewards
from covey.network.policy_loader import PolicyLoader
from covey.network.role_metrics import list_role_metrics
from covey.protocol.ids import Address, PoolId
from covey.runtime.cycle import CycleMetrics, Pace, keep_trying, report_forever, run_forever, stop_signals
from covey.runtime.log import configure, get_logger
from covey.runtime.prometheus import ReadOnRequest, build_gauge, serve_metrics
from covey.shardcast.delta.warm_up import compile_in_background
from worker.config import WorkerConfig
from worker.context import Context
from worker.engine_health import EngineHealth
from worker.instance import load_instance
from worker.kept_engine import KeptEngine
from worker.leases import LeaseQueue
from worker.pool_funds import FUNDS_SECONDS, watch_funds
from worker.pool_watch import WATCH_SECONDS, build_watch, watch_pool
from worker.reward_keeping import KEEP_SECONDS, keep_rewards
from worker.rounds import PoolSeat, Rounds
from worker.shutdown import Shutdown
from worker.submission_store import SubmissionStore
from worker.visit import Visit

FETCH_SECONDS = 1.0
"""Seconds between two polls of the chain for a newer policy."""
LEASES_A_CALL = 2
"""Timeout of an engine call, in lease durations. After it the engine counts as hung, and its process is restarted.

The call's own lease expires after one duration. Two durations let tasks finish that started during a slow but healthy
call.
"""


def build(
    config: WorkerConfig,
    network: Network,
    *,
    environment: Environment,
    grade: Grader,
    stop: asyncio.Event,
    contributor: Address | None = None,
    open_engine: Callable[[EnginePlan], Engine] = EnginePlan.build,
    wrap: Callable[[Engine], Engine] = lambda e: e,
) -> Context:
    """Compose the worker. `wrap` can wrap the opened engine, for example to cheat.

    `contributor` is the account that vouches for the node. None: it is read from the chain. Raises OperatorError if the
    node is not registered or the engine cannot be used.
    """
    contributor = contributor or _get_contributor(network)
    params = network.params
    plan = plan_engine(config, params, role="worker", call_seconds=LEASES_A_CALL * params.lease_seconds)
    engine = wrap(open_engine(plan))
    # One task more than fills the batch, so that the engine has completions to start when the first ones end.
    fitting = -(-config.batch // params.rollouts_per_task) + 1 if plan.name == "vllm" else 1
    together = config.tasks_together or fitting
    return Context(
        config=config,
        network=network,
        contributor=contributor,
        instance=load_instance(config.home),
        engine=engine,
        contract=plan.digest,
        loader=PolicyLoader(engine, network.policies, params.model),
        environment=environment,
        grade=grade,
        engine_threads=ThreadPoolExecutor(together, "engine"),
        leases=LeaseQueue(
            together=together,
            ahead=together if config.tasks_ahead is None else config.tasks_ahead,
            lease_seconds=params.lease_seconds,
        ),
        health=EngineHealth(),
        submissions=SubmissionStore(config.home / "outgoing"),
        rewards=KeptRewards(config.home / REWARDS_FOLDER),
        shutdown=Shutdown(),
        stop=stop,
    )


def _get_contributor(network: Network) -> Address:
    contributor = network.contracts.nodes.contributor_of(network.pool, network.wallet.address)
    if contributor is None:
        raise OperatorError(
            "unknown_node",
            f"the node {network.wallet.address} is not registered for any contributor",
            fix="Run covey worker register with this node's key file",
        )
    return contributor


def run(configs: Sequence[WorkerConfig], *, wrap: Callable[[Engine], Engine] = lambda e: e) -> None:
    """Work for one or several pools until a stop signal. Held leases are finished first.

    The first settings decide how the worker chooses among the pools. A pool that refuses the worker is given up, and
    the last refusal is raised.
    """
    configure("worker", level=configs[0].log_level)
    keep_memory()
    rounds, kept = build_rounds(configs), KeptEngine()
    try:
        while _stay(rounds, kept, wrap):
            pass
    finally:
        kept.close()


def build_rounds(configs: Sequence[WorkerConfig]) -> Rounds:
    """Return the pools of a worker with their prices, which are read only if there are several."""
    prices = [read_price(config) for config in configs] if len(configs) > 1 else [0.0]
    return Rounds(
        seats=[PoolSeat(config=config, price=price) for config, price in zip(configs, prices, strict=True)],
        preference=configs[0].prefer,
        stay_seconds=configs[0].stay_seconds,
        idle_seconds=configs[0].idle_seconds,
    )


def read_price(config: WorkerConfig) -> float:
    """Return a pool's reward for 1,000,000 tokens of work, in whole units of its token. Read from the chain."""
    deployment = Deployment.load(config.deployment)
    contracts, pool = Contracts(open_node(deployment, config.rpc_url), deployment), PoolId(config.pool)
    decimals = read_unit(contracts.get_token(pool)).decimals
    return float(contracts.pools.get_terms(pool).reward_per_million / 10**decimals)


def _stay(rounds: Rounds, kept: KeptEngine, wrap: Callable[[Engine], Engine]) -> bool:
    """Work for the pool whose turn it is. Return whether to go on with another one."""
    visits: list[Visit] = []
    seat = rounds.choose(time.monotonic())

    def work(vllm: VllmOptions) -> None:
        seat.config = seat.config.model_copy(update={"vllm": vllm})
        visits.append(Visit(rounds=rounds, seat=seat, clock=time.monotonic))
        asyncio.run(_run(visits[-1], kept, wrap))

    try:
        run_in_lane(seat.config.vllm, work)
    except OperatorError as refusal:
        if len(rounds.seats) == 1:
            raise
        seat.refusal = refusal
        get_logger().error("pool given up", pool=seat.config.pool, code=refusal.code, message=refusal.message)
        return True
    last = visits[-1]
    now = time.monotonic()
    rounds.leave(seat, now, begun=last.begun, useful_at=last.useful_at, is_paid=last.is_paid)
    return not last.is_stopped


async def _run(visit: Visit, kept: KeptEngine, wrap: Callable[[Engine], Engine]) -> None:
    config, stop = visit.seat.config, visit.over
    with stop_signals(visit.signalled):
        watching = asyncio.create_task(visit.watch())
        try:
            network = await keep_trying(lambda: visit.try_join(join), stop)
            if network is None:
                return
            compile_in_background()
            environment = await asyncio.to_thread(network.load_environment)
            with GradingPool(network.environment, environment, network.params.grading, config) as grade:
                ctx = await asyncio.to_thread(
                    build,
                    config,
                    network,
                    environment=environment,
                    grade=grade,
                    stop=stop,
                    open_engine=kept.open,
                    wrap=wrap,
                )
                if await keep_trying(lambda: network.coordinator.register(ctx.contract), stop) is None:
                    return
                visit.ctx = ctx
                get_logger().info(
                    "worker started",
                    pool=config.pool,
                    coordinator=config.coordinator_url,
                    node=network.wallet.address,
                    contributor=ctx.contributor,
                    contract=ctx.contract,
                )
                metrics = CycleMetrics()
                sources = (*list_role_metrics(network, metrics), ReadOnRequest(lambda: read_work(ctx)))
                try:
                    with serve_metrics(config, *sources):
                        await run_stages(ctx, metrics)
                finally:
                    ctx.engine_threads.shutdown()
                    await network.close()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def read_work(ctx: Context) -> Iterator[Metric]:
    """Yield how many leases are in each state, and how many submissions wait to be sent."""
    leases = ctx.leases
    counts = {"claimed": len(leases.claimed), "working": len(leases.working), "generated": len(leases.generated)}
    yield build_gauge("covey_leases", "Leases of this worker by state.", counts, label="state")
    unsent = len(ctx.submissions.list_unsent())
    yield build_gauge("covey_unsent_submissions", "Signed submissions that are not countersigned.", unsent)
    if leases.generation_seconds is not None:
        yield build_gauge("covey_generation_seconds", "Duration of the last task.", leases.generation_seconds)


async def run_stages(ctx: Context, metrics: CycleMetrics | None = None) -> None:
    """Run all cycles concurrently. `metrics` count those of the engine.

    After the stop signal, each cycle ends once no further input can reach it."""
    from worker import loop

    shutdown, metrics = ctx.shutdown, metrics or CycleMetrics()
    beat = Pace(idle_wait_s=ctx.config.heartbeat_seconds)

    async def claim() -> None:
        await run_forever(loop.claim, ctx, stop=ctx.stop)
        await loop.drain(ctx)

    try:
        async with asyncio.TaskGroup() as stages:
            stages.create_task(run_forever(loop.fetch, ctx, stop=ctx.stop, pace=Pace(idle_wait_s=FETCH_SECONDS)))
            stages.create_task(claim())
            for _ in range(ctx.leases.together):
                stages.create_task(run_forever(loop.work, ctx, stop=shutdown.work_over, metrics=metrics))
            stages.create_task(report_forever("worker", metrics, stop=shutdown.work_over))
            stages.create_task(run_forever(loop.sign_next, ctx, stop=shutdown.signing_over))
            stages.create_task(run_forever(loop.submit_pending, ctx, stop=shutdown.all_over))
            stages.create_task(run_forever(keep_rewards, ctx, stop=ctx.stop, pace=Pace(idle_wait_s=KEEP_SECONDS)))
            if ctx.config.watch:
                watch, rest = build_watch(ctx.config, ctx.contributor), Pace(idle_wait_s=WATCH_SECONDS)
                stages.create_task(run_forever(watch_pool, watch, stop=ctx.stop, pace=rest))
            stages.create_task(run_forever(watch_funds, ctx, stop=ctx.stop, pace=Pace(idle_wait_s=FUNDS_SECONDS)))
            stages.create_task(run_forever(loop.send_heartbeat, ctx, stop=ctx.stop, pace=beat))
    except ExceptionGroup as group:  # the first cycle that fails cancels the others; its error is the cause
        signed = ctx.submissions.has_signed
        await loop.return_leases(ctx, [order for order in ctx.leases.orders if not signed(order.task, order.lease)])
        raise group.exceptions[0] from None
