"""Composes a run on one machine and trains until its last step or a stop signal.

A run whose folder exists is resumed from its newest checkpoint. On one thread of a CPU it then gives the policies of a
run without interruption, bit for bit.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from covey.engines.installation import find_device
from covey.environments.base import Environment, Grader
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.network.entry import get_spec
from covey.protocol.canonical import to_bytes
from covey.protocol.ids import Address, PoolId, Step
from covey.protocol.params import TrainingParams
from covey.runtime.cycle import CycleResult, run_forever, stop_signals
from covey.runtime.files import write_atomically
from covey.runtime.full_disk import ExplainFullDisk
from covey.runtime.log import configure, get_logger
from covey.standalone.config import TrainConfig
from covey.standalone.main_thread import MainThread
from covey.standalone.manifest import RunManifest, find_differences, record_manifest, warn_of_other_policy
from covey.standalone.run_lock import hold_run
from covey.standalone.user_grader import UserGrader
from trainer.context import LearningContext, LearningProgress

if TYPE_CHECKING:
    from covey.standalone.generator import GeneratedBatch, Generator
    from covey.standalone.lenient_score import TwoScores
    from trainer.distributed.ranks import Ranks
    from trainer.monitoring.metrics import Sink

PARAMS_FILE = "params.json"
TRIES = 5
"""Number of failures to generate one batch after which a run ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """A run after everything that its settings leave open was chosen; see `covey.standalone.preparation`."""

    config: TrainConfig
    """Settings, with the device that was chosen."""
    params: TrainingParams
    load_environment: Callable[[], Environment]
    """Function that loads the environment. Each thread needs its own."""
    grade: Grader | None = None
    """Grader that needs no isolation. None: answers are graded in a sandbox."""
    engine: str
    """Name of the engine that generates."""
    node: Address
    """Address of the node whose draws the run makes."""
    manifest: RunManifest
    """Description of the run, for its folder."""
    repeated: RunManifest | None = None
    """Manifest of the run that this one repeats. None: it repeats none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(LearningContext):
    """Settings, components and state of a run on one machine."""

    config: TrainConfig
    generator: "Generator"
    is_alone: bool
    """Whether the learner may compute only while nothing is generated or evaluated."""
    generating: ThreadPoolExecutor
    """Executor with one thread, which alone uses the generator."""
    batches: "dict[Step, asyncio.Future[GeneratedBatch]]"
    """Batches that are being generated or wait for their step."""
    failures: Counter[Step]
    """Number of failures to generate the batch of a step."""

    @property
    def waits_for_writes(self) -> bool:
        """Whether a step ends only when its checkpoint is written. It does not: the generator needs only the policy."""
        return False

    def note_export(self, version: Step, folder: Path) -> None:
        """Keep the record hash of a policy, from which later draws follow."""
        self.generator.beacons.get(version)


def follow_rank(config: TrainConfig) -> None:
    """Carry out the commands of rank 0 until it stops. Under torchrun every process except rank 0 calls this.

    Rank 0 prepares the run. What it has chosen replaces the settings here, except those of this process.
    """
    from trainer.distributed.ranks import open_ranks
    from trainer.worker_rank import follow

    configure("train", level=config.log_level)
    device = find_device() if config.device == "auto" else config.device
    with open_ranks(device, seconds=config.rank_seconds) as ranks:
        follow(config.model_copy(update={"device": ranks.device}), ranks)


def run(plan: RunPlan, *, sinks: "Sequence[Sink]" = (), main_thread: MainThread | None = None) -> Step:
    """Train until the last step is evaluated, or until a stop signal. A step that is running is finished first.

    `main_thread` makes the calls that need it, if this is another thread. Returns the number of steps that the run has
    now.

    Under torchrun rank 0 calls this. It generates, and leads the other ranks, which call `follow_rank`.
    Raises OperatorError("run_in_use") if another process trains in the folder.
    """
    from trainer.distributed.ranks import open_ranks
    from trainer.monitoring.sinks import open_sinks

    configure("train", level=plan.config.log_level)
    with hold_run(plan.config.home), open_ranks(plan.config.device, seconds=plan.config.rank_seconds) as ranks:
        plan = replace(plan, config=plan.config.model_copy(update={"device": ranks.device}))
        with open_sinks(plan.config) as others:
            return asyncio.run(_run(plan, [*sinks, *others], ranks, main_thread))


async def _run(plan: RunPlan, sinks: "Sequence[Sink]", ranks: "Ranks", main_thread: MainThread | None) -> Step:
    from covey.environments.grader import GradingPool
    from covey.standalone.lenient_score import TwoScores, load_lenient
    from trainer.distributed.ranks import lead

    stop = asyncio.Event()
    spec = get_spec(plan.params)
    if main_thread is not None:
        main_thread.on_interrupt = partial(asyncio.get_running_loop().call_soon_threadsafe, _stop, stop)
    with stop_signals(stop, on_stop=partial(_stop, stop)), ExitStack() as stack:
        async with lead(ranks, stop):
            generating = stack.enter_context(ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate"))
            environment = await asyncio.to_thread(plan.load_environment)
            grade = _guard(plan, main_thread, stack) or stack.enter_context(
                GradingPool(spec, environment, plan.params.grading, plan.config)
            )
            scores = None
            if plan.config.eval.lenient_extraction is not None:
                lenient = load_lenient(spec, plan.config.eval.lenient_extraction)
                pool = GradingPool(*lenient, plan.params.grading, plan.config)
                scores = TwoScores(grade, stack.enter_context(pool))
            ctx = await asyncio.to_thread(_build, plan, environment, grade, scores, generating, stop, sinks, ranks)
            stack.callback(ctx.generator.engine.close)
            await run_cycles(ctx)
            return ctx.progress.step


def _stop(stop: asyncio.Event) -> None:
    get_logger().warning("the run stops after the current step; another Ctrl-C stops it at once")
    stop.set()


def _guard(plan: RunPlan, main_thread: MainThread | None, stack: ExitStack) -> Grader | None:
    """Return the user's own grader, called in the main thread. None if answers are graded in a sandbox.

    A script that trains in another thread has its function called there, without a deadline.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if plan.grade is None or not (is_main or main_thread):
        return plan.grade
    post = main_thread.post if main_thread else asyncio.get_running_loop().call_soon_threadsafe
    grader = UserGrader(plan.grade, post, seconds=plan.config.data.reward_seconds)
    stack.callback(grader.close)  # before the executor waits for its thread, which may wait for a call
    if main_thread is not None:
        main_thread.on_leave = grader.close
    return grader


async def run_cycles(ctx: RunContext) -> None:
    """Run cycles until the last step or a stop signal. The newest step then has a checkpoint."""
    from trainer.train_step import save_newest

    get_logger().info("training started", step=ctx.progress.step, steps=ctx.config.steps, folder=str(ctx.config.home))
    try:
        await run_forever(cycle, ctx, stop=ctx.stop)
    finally:
        ctx.stop.set()
        done = [batch for batch in ctx.batches.values() if not batch.cancel()]  # one that runs ends with its executor
        endings = (ctx.background.stop(), asyncio.to_thread(ctx.saver.close), *done)
        ended = await asyncio.gather(*endings, return_exceptions=True)
    for failure in ended:
        if isinstance(failure, Exception):
            raise failure
    await asyncio.to_thread(save_newest, ctx)
    if ctx.progress.step < ctx.config.steps:
        get_logger().info("training stopped, the same command continues", step=ctx.progress.step)


async def cycle(ctx: RunContext) -> CycleResult:
    """Take one step. The next batch is generated as soon as its policy is on disk, while the checkpoint is written.

    With a staleness above 0 it is generated while the learner computes.
    """
    from trainer.loop import evaluate
    from trainer.schedule import is_finished
    from trainer.train_step import learn

    progress, step = ctx.progress, ctx.progress.step
    evaluate(ctx)
    if is_finished(step, ctx.config.steps):
        await asyncio.to_thread(ctx.saver.wait)
        evaluate(ctx)
        await ctx.background.finish()
        get_logger().info("training finished", step=step)
        ctx.stop.set()
        return CycleResult.DONE
    batch = await _take_batch(ctx, step)
    if not ctx.learner.is_saved_apart:
        await asyncio.to_thread(ctx.saver.wait)  # as the update would
        evaluate(ctx)
    if ctx.metrics.is_pause_due:
        raise OperatorError(
            "dead_run",
            f"the last {ctx.config.stop_when_dead} steps could not learn: "
            f"{'; '.join(sign.sentence for sign in ctx.metrics.signs) or 'no group was live'}",
            fix=" ".join(sign.advice for sign in ctx.metrics.signs)
            or "Choose questions that the model sometimes answers, or set stop_when_dead = 0",
        )
    waited = ctx.timer() - progress.waiting_since
    ctx.metrics.record(
        "generation",
        step,
        {
            "time/generate": batch.seconds,
            "time/load_policy": batch.load_seconds,
            "perf/generated_tokens_per_second": batch.tokens / max(batch.seconds, 1e-9),
        },
    )
    if ctx.is_alone:
        await ctx.background.finish()
    await asyncio.to_thread(learn, ctx, list(batch.works), waited)
    return CycleResult.DONE


async def _take_batch(ctx: RunContext, step: Step) -> "GeneratedBatch":
    """Return the batch of a step, and begin with as many later ones as the staleness allows."""
    ahead = min(step + ctx.params.max_staleness, ctx.config.steps - 1)
    for later in map(Step, range(step, max(step, ahead) + 1)):
        if later not in ctx.batches:
            await asyncio.to_thread(ctx.saver.wait_for_policy)
            loop = asyncio.get_running_loop()
            ctx.batches[later] = loop.run_in_executor(ctx.generating, ctx.generator.generate, later)
    try:
        return await ctx.batches.pop(step)  # a failed one is generated again
    except ProtocolError as error:
        raise OperatorError(
            "generation_failed",
            f"the batch of step {step} cannot be generated: {error.message}",
            fix="Correct the questions or the lengths that the message names, and start again with a new folder",
        ) from error
    except TransientError as error:
        ctx.failures[step] += 1
        if ctx.failures[step] < TRIES:
            raise
        raise OperatorError(
            "generation_failed",
            f"the batch of step {step} could not be generated {TRIES} times: {error.message}",
            fix="Read the log above, and start again; the run is resumed",
        ) from error


def _build(
    plan: RunPlan,
    environment: Environment,
    grade: Grader,
    scores: "TwoScores | None",
    generating: ThreadPoolExecutor,
    stop: asyncio.Event,
    sinks: "Sequence[Sink]",
    ranks: "Ranks",
) -> RunContext:
    """Compose the run and restore its newest checkpoint."""
    from covey.model.policy_files import load_end_tokens, load_tokenizer
    from covey.model.prompts import require_policy_format
    from covey.standalone.beacons import Beacons
    from covey.standalone.generator import Generator
    from covey.standalone.run_engine import build_run_engine
    from covey.standalone.run_restart import restore
    from trainer.checkpoints.checkpoint import Checkpoints, StepFolders
    from trainer.checkpoints.journal import StepJournal
    from trainer.checkpoints.saver import Saver
    from trainer.factories import build_evaluator, build_learner, get_source
    from trainer.monitoring.evaluation import Background, explain_evaluation
    from trainer.monitoring.metrics import TrainingMetrics
    from trainer.monitoring.performance import complete_report

    config, params, home = plan.config, plan.params, plan.config.home
    require_same_run(home, params, config)
    learner, recomputer = build_learner(config, params, ranks)
    source = get_source(config)
    tokenizer = load_tokenizer(source)
    require_policy_format(tokenizer, load_end_tokens(source, tokenizer), params.model)
    ckpt = config.ckpt
    checkpoints = Checkpoints(home / "checkpoints", keep=ckpt.keep, every=ckpt.every, last=config.steps)
    journal, exports = StepJournal(home / "journal"), StepFolders(home / "exports")
    pool = PoolId(config.sampling.pool)
    beacons = Beacons(home / "beacons.jsonl", exports, pool)
    step, report = restore(
        config, learner, source, checkpoints=checkpoints, journal=journal, exports=exports, beacons=beacons, pool=pool
    )
    if step > config.steps:
        raise OperatorError(
            "already_trained",
            f"the run in {home} has {step} steps already, more than the {config.steps} that are set",
            fix="Raise steps, or choose a new folder",
        )
    if step < config.steps:
        record_manifest(home, plan.manifest, step=step, first_policy=beacons.get(Step(0)))
    if plan.repeated is not None:
        warn_of_other_policy(plan.repeated, beacons.get(Step(0)))
    metrics = TrainingMetrics(
        home / "metrics.jsonl", alarms=config.alarms, stop_when_dead=config.stop_when_dead, sinks=sinks
    )
    if report:  # a crash may have come between checkpoint and metrics
        metrics.record("update", step - 1, complete_report(report, config, saved=0.0, devices=learner.ranks.size))
    sampling = build_run_engine(
        plan.engine, config, params, environment=environment, tokenizer=tokenizer, learner=config.device
    )
    engine, turn = sampling.engine, sampling.turn
    evaluator = build_evaluator(
        config.model_copy(update={"device": sampling.device}),
        params,
        plan.load_environment(),
        grade=scores or grade,
        engine=engine if sampling.evaluates else None,
    )
    if config.eval.every:
        with turn if sampling.evaluates else explain_evaluation():
            evaluator.engine.load_policy(exports.get_path(step), step)

    def evaluate(evaluated: Step) -> None:
        with turn if sampling.evaluates else nullcontext():
            score = evaluator.evaluate(exports.get_path(evaluated), evaluated)
        second = {} if scores is None else {"lenient_reward": scores.mean}
        metrics.record("evaluation", evaluated, {**asdict(score), **second, "n": evaluator.size})

    return RunContext(
        config=config,
        params=params,
        tokenizer=tokenizer,
        learner=learner,
        recomputer=recomputer,
        checkpoints=checkpoints,
        journal=journal,
        exports=exports,
        saver=Saver(),
        background=Background(evaluate=evaluate, on_failure=stop.set),
        metrics=metrics,
        progress=LearningProgress(step=step, written=step, waiting_since=time.monotonic()),
        stop=stop,
        generator=Generator(
            engine=engine,
            environment=environment,
            grade=grade,
            params=params,
            exports=exports,
            beacons=beacons,
            pool=pool,
            node=plan.node,
            turn=turn,
        ),
        is_alone=sampling.is_alone,
        generating=generating,
        batches={},
        failures=Counter(),
    )


def require_same_run(home: Path, params: TrainingParams, config: TrainConfig) -> None:
    """Write what determines the batches of a new run. In the folder of an older run, compare it.

    Raises OperatorError("another_run") if the folder has a run with other parameters.
    """
    ours = {"params": params.model_dump(mode="json"), "seed": config.seed}
    file = home / PARAMS_FILE
    with ExplainFullDisk(home, "the run's folder"):
        home.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_atomically(file, to_bytes(ours))
    theirs = json.loads(file.read_bytes())
    different = find_differences(theirs, ours)
    if different:
        raise OperatorError(
            "another_run",
            f"{home} has a run with other settings: {'; '.join(different[:5])}",
            fix="Set home to a new folder, or use the settings with which this run was begun",
        )
