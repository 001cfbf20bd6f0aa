"""Composes and runs the validator: judging and enforcement until a stop signal."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial

from prometheus_client.core import Metric

from covey.chain.account_lock import lock_account
from covey.chain.fees import FeeLimits
from covey.chain.sender import Sender
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.engines.cpu_tuning import keep_memory
from covey.engines.factory import plan_engine, run_in_lane
from covey.environments.base import Environment, Grader
from covey.errors import OperatorError
from covey.network.entry import Network, join
from covey.network.policy_loader import PolicyLoader
from covey.network.role_metrics import list_role_metrics
from covey.runtime.cycle import CycleMetrics, Pace, keep_trying, report_forever, run_forever, stop_signals
from covey.runtime.log import configure, get_logger
from covey.runtime.prometheus import ReadOnRequest, build_gauge, serve_metrics
from covey.sandbox import ATTEMPTS, Sandbox
from covey.shardcast.delta.warm_up import compile_in_background
from validator.checks import CheckTools
from validator.config import ValidatorConfig
from validator.context import Context
from validator.enforcement import require_power
from validator.evidence_bundle import JudgingEnvironment, describe_engine
from validator.held_turns import HeldTurns
from validator.kept_epochs import KeptEpochs
from validator.own_verdicts import OwnVerdicts
from validator.pending_reveals import PendingReveals
from validator.sandboxes import build_decoder, build_grader

POWER_SECONDS = 10.0
"""Seconds between two looks at the validator's own bond and seat."""
PROPOSAL_SECONDS = 86_400
"""Timeout in seconds for proposing a case again after the slash cap allows it."""


def build(
    config: ValidatorConfig,
    network: Network,
    *,
    environment: Environment,
    decoder: Sandbox,
    grade: Grader,
    stop: asyncio.Event,
) -> Context:
    """Compose the validator.

    Raises OperatorError if the court would not count its verdicts, if they expire too early, or if the engine cannot be
    used.
    """
    require_power(network)
    _require_lasting_verdicts(config, network)
    params = network.params
    plan = plan_engine(config, params, role="validator")
    engine = plan.build()
    outbox = SqliteOutbox(config.home / "outbox.sqlite3")
    return Context(
        config=config,
        network=network,
        tools=CheckTools(
            params=params,
            domain=network.receipt_domain,
            engine=engine,
            environment=environment,
            decode=partial(decoder.call, attempts=ATTEMPTS),
            grade=grade,
            contract=plan.digest,
        ),
        venue=JudgingEnvironment(
            chain_id=network.receipt_domain.chain_id,
            court=network.receipt_domain.contract,
            pool=network.pool,
            params_hash=network.terms.params_hash,
            engine=describe_engine(
                plan.name,
                dtype=params.model.compute_dtype,
                batch=config.batch,
                device=config.device,
                interpreter=config.vllm.interpreter,
                contract=plan.digest,
            ),
            isolation=decoder.isolation.level,
        ),
        loader=PolicyLoader(engine, network.policies, params.model),
        pending=PendingReveals(config.home / "pending"),
        verdicts=OwnVerdicts(config.home / "verdicts.sqlite3"),
        epochs=KeptEpochs(config.home / "epochs"),
        turns=HeldTurns(config.turns),
        outbox=outbox,
        sender=Sender(
            network.chain,
            network.wallet,
            outbox,
            chain_id=network.receipt_domain.chain_id,
            finality=config.finality,
            limits=FeeLimits.of(config),
            lock=partial(lock_account, network.contracts.deployment, network.wallet.address),
        ),
        stop=stop,
    )


def _require_lasting_verdicts(config: ValidatorConfig, network: Network) -> None:
    """Raise OperatorError("short_verdicts") unless a verdict is still valid in the next span of the slash cap.

    A case that the cap refuses is proposed again in that span.
    """
    window, needed = network.terms.unbond_window, network.terms.unbond_window + PROPOSAL_SECONDS
    if config.verdict_seconds < needed:
        raise OperatorError(
            "short_verdicts",
            f"verdict_seconds is {config.verdict_seconds}, but pool {network.pool} requires at "
            f"least {needed}, its unbond_window of {window} plus one day, so that a case that "
            "exceeds the cap on slashes can be proposed again",
            fix=f"Set verdict_seconds to at least {needed}",
        )


def run(config: ValidatorConfig) -> None:
    """Judge and enforce until a stop signal. A judgement in progress is finished first.

    Raises OperatorError once the validator's bond is too small, or its seat is lost.
    """
    configure("validator", level=config.log_level)
    keep_memory()
    run_in_lane(config.vllm, lambda vllm: asyncio.run(_run(config.model_copy(update={"vllm": vllm}))))


async def _run(config: ValidatorConfig) -> None:
    stop = asyncio.Event()
    with stop_signals(stop), build_decoder(config) as decoder:
        network = await keep_trying(lambda: join(config), stop)
        if network is None:
            return
        compile_in_background()
        try:
            environment = await asyncio.to_thread(network.load_environment)
            with build_grader(config, network.params, environment) as grade:
                ctx = await asyncio.to_thread(
                    build, config, network, environment=environment, decoder=decoder, grade=grade, stop=stop
                )
                metrics = CycleMetrics()
                shown = (*list_role_metrics(network, metrics), ReadOnRequest(lambda: read_turns(ctx)))
                try:
                    with serve_metrics(config, *shown):
                        await _run_loops(ctx, stop, metrics)
                finally:
                    ctx.tools.engine.close()
                    ctx.outbox.close()
                    ctx.verdicts.close()
        finally:
            await network.close()


def read_turns(ctx: Context) -> Iterator[Metric]:
    """Yield how many turns the validator holds, and how many more it could take."""
    yield build_gauge("covey_held_turns", "Turns that this validator holds.", len(ctx.turns.held))
    yield build_gauge("covey_free_turns", "Turns that it could take as well.", ctx.turns.free)


async def _run_loops(ctx: Context, stop: asyncio.Event, metrics: CycleMetrics) -> None:
    """Run the loops for turns, judging, enforcement, epochs, the bond and reports until `stop` is set or one fails.

    All have ended on return.
    """
    from validator import enforcement, epoch_signing, loop

    get_logger().info("validator started", validator=ctx.network.wallet.address, contract=ctx.tools.contract)
    pace = Pace(idle_wait_s=ctx.config.enforcement_seconds)
    enforcing = asyncio.create_task(run_forever(enforcement.cycle, ctx, stop=stop, pace=pace))
    enforcing.add_done_callback(lambda _: stop.set())
    watching = asyncio.create_task(
        run_forever(enforcement.watch_power, ctx, stop=stop, pace=Pace(idle_wait_s=POWER_SECONDS))
    )
    watching.add_done_callback(lambda _: stop.set())
    polling = asyncio.create_task(run_forever(loop.poll, ctx, stop=stop))
    polling.add_done_callback(lambda _: stop.set())
    reporting = asyncio.create_task(report_forever("validator", metrics, stop=stop))
    others = [enforcing, watching, polling, reporting]
    if ctx.network.terms.header_quorum:
        attester = epoch_signing.Attester(time.monotonic)
        pace = Pace(idle_wait_s=epoch_signing.AWAITING_SECONDS)
        signing = asyncio.create_task(run_forever(attester.cycle, ctx, stop=stop, pace=pace))
        signing.add_done_callback(lambda _: stop.set())
        others.append(signing)
    try:
        await run_forever(loop.judge_next, ctx, stop=stop, metrics=metrics)
    finally:
        stop.set()
        await asyncio.wait(others)
    for task in others:
        await task
