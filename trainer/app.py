"""Composes and runs the trainer until the last step or a stop signal.

Its imports are light until it runs. `factories` builds the components that compute.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from covey.chain.account_lock import lock_account
from covey.chain.fees import FeeLimits
from covey.chain.sender import Sender
from covey.chain.sqlite_outbox import SqliteOutbox
from covey.engines.cpu_tuning import keep_memory
from covey.environments.base import Grader
from covey.environments.grader import CHECKING_PATIENCE, GradingPool
from covey.errors import OperatorError
from covey.network.entry import Network, join
from covey.network.role_metrics import list_role_metrics
from covey.protocol.ids import Step
from covey.protocol.submission_file.decoder import open_decoder
from covey.runtime.cycle import CycleMetrics, keep_trying, stop_signals
from covey.runtime.full_disk import ExplainFullDisk
from covey.runtime.log import configure, get_logger
from covey.runtime.prometheus import ReadOnRequest, serve_metrics
from covey.sandbox import ATTEMPTS
from covey.shardcast.delta.warm_up import compile_in_background
from covey.tasks.catalog import list_digests, list_folders
from trainer.config import TrainerConfig
from trainer.context import Context, TrainingProgress
from trainer.requirements import require_extras, require_trainable

if TYPE_CHECKING:
    from trainer.distributed.ranks import Ranks
    from trainer.monitoring.metrics import Sink
    from trainer.publisher import Publisher


def build(
    config: TrainerConfig,
    network: Network,
    *,
    decode: Callable[[bytes], bytes],
    grade: Grader,
    publisher: "Publisher",
    chain_thread: ThreadPoolExecutor,
    stop: asyncio.Event,
    sinks: "Sequence[Sink]" = (),
    ranks: "Ranks | None" = None,
) -> Context:
    """Compose the trainer and restore its newest checkpoint. Without a checkpoint, write the one of the first step.

    `ranks` are all ranks; this one is rank 0 and leads them. None means that there is only this process.

    Raises OperatorError if the chain specifies a different trainer, or if checkpoint and chain do not match.
    """
    from covey.model.policy_files import load_end_tokens, load_tokenizer
    from covey.model.prompts import require_policy_format
    from trainer.checkpoints.checkpoint import Checkpoints, StepFolders
    from trainer.checkpoints.journal import StepJournal
    from trainer.checkpoints.resume import restore
    from trainer.checkpoints.saver import Saver
    from trainer.distributed.ranks import ALONE
    from trainer.factories import build_evaluator, build_learner, build_regrader, get_source
    from trainer.monitoring.evaluation import Background, explain_evaluation
    from trainer.monitoring.metrics import TrainingMetrics
    from trainer.monitoring.performance import complete_report
    from trainer.schedule import is_kept_again

    if network.terms.trainer != network.wallet.address:
        raise OperatorError(
            "not_the_trainer",
            f"the trainer of pool {network.pool} is {network.terms.trainer}, but this key belongs "
            f"to {network.wallet.address}",
            fix=f"Set key_file to the key of {network.terms.trainer} (covey wallet show prints a "
            f"key's address), or create a pool with trainer = {network.wallet.address}",
        )
    learner, recomputer = build_learner(config, network.params, ranks or ALONE)
    source = get_source(config)
    tokenizer = load_tokenizer(source)
    require_policy_format(tokenizer, load_end_tokens(source, tokenizer), network.params.model)
    checkpoints = Checkpoints(
        config.home / "checkpoints", keep=config.ckpt.keep, every=config.ckpt.every, last=config.steps
    )
    journal, exports = StepJournal(config.home / "journal"), StepFolders(config.home / "exports")
    resumed = restore(
        config,
        network,
        learner,
        tokenizer,
        checkpoints=checkpoints,
        journal=journal,
        exports=exports,
        source=Path(source),
        open_preview=publisher.open_preview,
        keeps=partial(
            is_kept_again,
            max_staleness=network.params.max_staleness,
            steps=config.steps,
            keep_every=config.ckpt.keep_policies_every,
            eval_every=config.eval.every,
        ),
    )
    step = resumed.step
    metrics = TrainingMetrics(
        config.home / "metrics.jsonl", alarms=config.alarms, stop_when_dead=config.stop_when_dead, sinks=sinks
    )
    evaluator = build_evaluator(config, network.params, network.load_environment(), grade=grade)
    if config.eval.every:
        with explain_evaluation():
            evaluator.engine.load_policy(exports.get_path(step), step)  # building a model changes torch's default dtype

    def evaluate(evaluated: Step) -> None:
        score = evaluator.evaluate(exports.get_path(evaluated), evaluated)
        metrics.record("evaluation", evaluated, {**asdict(score), "n": evaluator.size})
        get_logger().info("policy evaluated", step=evaluated, reward=round(score.reward, 4))

    if resumed.report:  # a crash may have come between checkpoint and metrics
        report = complete_report(resumed.report, config, saved=0.0, devices=learner.ranks.size)
        metrics.record("update", step - 1, report)
    return Context(
        config=config,
        params=network.params,
        network=network,
        tokenizer=tokenizer,
        learner=learner,
        recomputer=recomputer,
        checkpoints=checkpoints,
        journal=journal,
        exports=exports,
        saver=Saver(),
        publisher=publisher,
        chain_thread=chain_thread,
        background=Background(evaluate=evaluate, on_failure=stop.set),
        metrics=metrics,
        decode=decode,
        regrader=build_regrader(config, network, vocabulary=learner.vocabulary, grade=grade),
        progress=TrainingProgress(
            step=step, written=step, waiting_since=time.monotonic(), unpublished=resumed.unpublished
        ),
        stop=stop,
    )


def open_outbox(config: TrainerConfig) -> SqliteOutbox:
    """Open the outbox for policies. Raises OperatorError("disk_full") if the disk is full."""
    with ExplainFullDisk(config.home, "the outbox"):
        return SqliteOutbox(config.home / "outbox.sqlite3")


def serve_data_sets(config: TrainerConfig, network: Network) -> None:
    """Add this machine's data sets to the origin, and open all data sets of the pool.

    Raises OperatorError("wrong_dataset") if a data set of the pool is neither here nor at a relay.
    """
    from covey.shardcast.origin_store import OriginStore
    from covey.tasks.publishing import add_data_set, require_data_sets

    store = OriginStore(config.origin_root)
    with ExplainFullDisk(config.origin_root, "the data sets"):
        for folder in list_folders(config.datasets):
            get_logger().info("serving data set", folder=str(folder), digest=add_data_set(store, folder))
    require_data_sets(list_digests(network.environment), network.data_sets)


def build_publisher(config: TrainerConfig, network: Network, outbox: SqliteOutbox) -> "Publisher":
    """Build the publisher. Only one thread may call it."""
    from covey.shardcast.offering import Offering
    from covey.shardcast.origin_store import OriginStore
    from trainer.publisher import Publisher
    from trainer.schedule import build_retention

    chain_id = network.receipt_domain.chain_id
    offering = Offering(
        OriginStore(config.origin_root),
        pool=network.pool,
        domain=network.registry_domain,
        signer=network.wallet,
        retention=build_retention(config.keep_policies, network.terms, network.params),
        anchor_every=config.anchor_every,
        threads=os.cpu_count() or 1,
    )
    sender = Sender(
        network.chain,
        network.wallet,
        outbox,
        chain_id=chain_id,
        finality=config.finality,
        limits=FeeLimits.of(config),
        lock=partial(lock_account, network.contracts.deployment, network.wallet.address),
    )
    return Publisher(
        pool=network.pool,
        registry=network.contracts.policies,
        outbox=outbox,
        pump=sender.pump,
        offering=offering,
    )


def run(config: TrainerConfig, *, sinks: "Sequence[Sink]" = ()) -> None:
    """Train until the last step is published and evaluated, or until a stop signal. A running cycle is finished first.

    `sinks` receive each line of metrics. Under torchrun all its processes call this, and rank 0 leads the others.
    """
    from trainer.distributed.ranks import open_ranks
    from trainer.monitoring.sinks import open_sinks

    configure("trainer", level=config.log_level)
    keep_memory()
    with open_ranks(config.device, seconds=config.rank_seconds) as ranks:
        config = config.model_copy(update={"device": ranks.device})
        if ranks.rank > 0:
            from trainer.worker_rank import follow

            follow(config, ranks)
            return
        require_extras(config)
        with open_sinks(config) as others:
            asyncio.run(_run(config, [*sinks, *others], ranks))


async def _run(config: TrainerConfig, sinks: "Sequence[Sink]", ranks: "Ranks") -> None:
    from trainer.distributed.ranks import lead

    stop = asyncio.Event()
    with stop_signals(stop):
        async with lead(ranks, stop):
            await _train(config, sinks, ranks, stop)


async def _train(config: TrainerConfig, sinks: "Sequence[Sink]", ranks: "Ranks", stop: asyncio.Event) -> None:
    from trainer.monitoring.newest_numbers import NewestNumbers

    decoder = open_decoder(
        cpu_seconds=config.decoding_seconds,
        memory_bytes=config.decoding_memory_bytes,
        isolation=config.isolation,
    )
    chain_thread, numbers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chain"), NewestNumbers()
    with ExitStack() as stack:
        stack.enter_context(decoder)
        stack.enter_context(chain_thread)
        network = await keep_trying(lambda: join(config, opens_data_sets=False), stop)
        if network is None:
            return
        compile_in_background()
        await asyncio.to_thread(serve_data_sets, config, network)
        outbox = open_outbox(config)
        try:
            environment = await asyncio.to_thread(network.load_environment)
            source = config.model.path
            await asyncio.to_thread(require_trainable, config, network.params, environment, source=source)
            grade = stack.enter_context(
                GradingPool(
                    network.environment, environment, network.params.grading, config, patience=CHECKING_PATIENCE
                )
            )
            ctx = await asyncio.to_thread(
                build,
                config,
                network,
                decode=partial(decoder.call, attempts=ATTEMPTS),
                grade=grade,
                publisher=build_publisher(config, network, outbox),
                chain_thread=chain_thread,
                stop=stop,
                sinks=[*sinks, numbers.write],
                ranks=ranks,
            )
            get_logger().info("trainer started", trainer=network.wallet.address, step=ctx.progress.step)
            from trainer.loop import run_cycles

            metrics = CycleMetrics()
            shown = (*list_role_metrics(network, metrics), ReadOnRequest(numbers.read))
            with serve_metrics(config, *shown):
                await run_cycles(ctx, metrics=metrics)
        finally:
            chain_thread.shutdown()
            outbox.close()
            await network.close()
