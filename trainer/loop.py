"""The trainer's cycle: publish, evaluate beside it, learn from the next batch, one verb a line."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from covey.errors import ProtocolError
from covey.log import get_logger
from covey.protocol.ids import Step
from covey.protocol.wire import BatchItem, BatchOrder
from covey.runtime import Outcome, or_stop, wait_or_stop
from trainer import batch, service
from trainer.app import Context
from trainer.batch import Sample, Work
from trainer.checkpoint import export_policy
from trainer.disk import ExplainFullDisk
from trainer.performance import build_performance, compute_flops, get_peak_memory, measure_model

PUMP_SECONDS = 0.05
DOWNLOADS = 8
WRONG_FILE = {"digest_mismatch", "oversized"}
"""What no repetition mends."""
TRIES = 2
"""Orders of which no file was new, after which the files that are refused are taken for lost: a store says so for links
that ran out too."""


async def cycle(ctx: Context) -> Outcome:
    """Finish what is begun, then take one step."""
    if not await publish(ctx):
        return Outcome.IDLE
    evaluate(ctx)
    if service.is_finished(ctx.progress.step, ctx.config.steps):
        return await finish(ctx)
    order = await or_stop(ctx.stop, claim(ctx))
    if order is None:
        return Outcome.IDLE
    works = await fetch(ctx, order)
    waited = ctx.timer() - ctx.progress.waiting_since
    await asyncio.to_thread(learn, ctx, works, waited)
    return Outcome.DONE


async def publish(ctx: Context) -> bool:
    """Have the newest policy in the origin and on chain; False when a stop signal came first."""
    progress, loop = ctx.progress, asyncio.get_running_loop()
    if progress.is_published:
        return True
    folder = ctx.exports.get_path(progress.step)
    with ExplainFullDisk(ctx.config.origin_root, f"policy {progress.step}"):
        manifest_hash = await loop.run_in_executor(ctx.chain_thread, ctx.publisher.offer, folder, progress.step)
    if progress.offered_at is None:
        progress.offered_at = ctx.timer()
    with ExplainFullDisk(ctx.config.home, "the outbox"):
        while not await loop.run_in_executor(ctx.chain_thread, ctx.publisher.advance, progress.step, manifest_hash):
            if await wait_or_stop(ctx.stop, PUMP_SECONDS):
                return False
    progress.is_published, progress.waiting_since = True, ctx.timer()
    ctx.metrics.record("policy", progress.step, {"manifest_hash": manifest_hash, "time": ctx.clock()})
    if progress.report:
        report = progress.report | {
            "time/publish": progress.offered_at - progress.updated_at,
            "time/wait_for_chain": progress.waiting_since - progress.offered_at,
            "perf/peak_memory_bytes": get_peak_memory(ctx.config.device),
        }
        devices = ctx.learner.ranks.size
        report |= build_performance(report, peak_flops=ctx.config.peak_flops, devices=devices)
        ctx.metrics.record("update", progress.step - 1, report)
    get_logger().info("published", step=progress.step, manifest_hash=manifest_hash)
    return True


def evaluate(ctx: Context) -> None:
    """Order the evaluation of every kept policy that has none."""
    config = ctx.config
    for step in ctx.exports.list_steps():
        is_wanted = service.is_evaluated(step, steps=config.steps, every=config.evaluation_every)
        if is_wanted and not ctx.metrics.has("evaluation", step):
            ctx.background.add(step)


async def finish(ctx: Context) -> Outcome:
    """The last policy is out: wait for the evaluations and end the process."""
    await ctx.background.finish()
    get_logger().info("training is done", step=ctx.progress.step)
    ctx.stop.set()
    return Outcome.DONE


async def claim(ctx: Context) -> BatchOrder | None:
    """Wait for the batch of the newest step."""
    return await ctx.network.coordinator.claim_batch(ctx.progress.step, wait_seconds=ctx.config.wait_seconds)


async def fetch(ctx: Context, order: BatchOrder) -> list[Work | None]:
    """The files of a batch, checked and decoded; None for what is stale, wrong or lost for good, which is left out.

    Where no file is to be had none is lost: the store is not as it should be.  What was had is not fetched again.
    """
    params, client, progress = ctx.network.params, ctx.network.coordinator, ctx.progress
    service.require_order(order, progress.step)
    items = {item.task: item for item in order.items if service.is_fresh(item, order.step, params)}
    slots, refusals, found = asyncio.Semaphore(DOWNLOADS), list[ProtocolError](), progress.fetched
    before = len(found)

    async def fetch_one(item: BatchItem) -> None:
        try:
            async with slots:
                file = await client.get_object(item.url, max_bytes=params.max_submission_bytes)
            found[item.task] = await asyncio.to_thread(
                service.read_work, item, file, params, vocabulary=ctx.learner.vocabulary, decode=ctx.decode
            )
        except ProtocolError as error:
            if error.code in WRONG_FILE:
                leave_out(item, error)
            else:
                refusals.append(error)  # of a link that ran out, perhaps: the next order has another

    def leave_out(item: BatchItem, error: ProtocolError) -> None:
        get_logger().error("submission left out", task=item.task, code=error.code, message=error.message)
        found[item.task] = None

    try:
        async with asyncio.TaskGroup() as group:
            for item in items.values():
                if item.task not in found:
                    group.create_task(fetch_one(item))
    except ExceptionGroup as failed:  # the others are cut off, and asked for again
        raise failed.exceptions[0] from None
    if refusals:
        progress.fruitless = 0 if len(found) > before or not any(found.values()) else progress.fruitless + 1
        if progress.fruitless < TRIES:
            raise refusals[0]
    for item in items.values():
        if item.task not in found:
            leave_out(item, refusals[0])
    return [*(found[task] for task in items), *[None] * (len(order.items) - len(items))]


def learn(ctx: Context, works: list[Work | None], waited: float) -> None:
    """All updates of a step, then the policy and the checkpoint that make them last."""
    config, params, progress = ctx.config, ctx.network.params, ctx.progress
    started, step = ctx.timer(), progress.step
    kept = [work for work in works if work is not None and is_computable(ctx, work)]
    samples = batch.build_samples(kept, group_size=params.group_size, advantage=config.advantage)
    taught = batch.keep_live(samples, group_size=params.group_size) if params.online_filter else samples
    parts = batch.split_updates(fill_in(ctx, taught), group_size=params.group_size, updates=config.updates_per_step)
    consumed = [
        batch.build_batch(
            part,
            normaliser=config.normaliser,
            constant=params.model.max_completion_tokens,
            keep_all=config.kl_coefficient > 0 or config.entropy_coefficient > 0,
        )
        for part in parts
    ]
    updates = ctx.learner.learn(consumed)
    families = [family for each in consumed for family in ctx.learner.find_families(each)]
    predictions = sum(len(sample.tokens) for each in consumed for sample in each.samples)
    progress.updated_at = ctx.timer()
    report = service.build_report(samples, updates, step=step, left_out=len(works) - len(kept))
    report |= service.split_rewards(samples, ctx.environment, ctx.tokenizer)
    report |= {
        "time/wait_for_batch": waited,
        "time/update": progress.updated_at - started,
        "perf/flops": compute_flops(families, measure_model(ctx.learner.model), predictions=predictions),
    }
    made = Step(step + 1)
    export_policy(ctx.exports, ctx.learner, ctx.tokenizer, made)
    ctx.checkpoints.save(ctx.learner, made, report)
    ctx.exports.retain(lambda version: is_needed(ctx, version, made))
    progress.step, progress.is_published, progress.report, progress.offered_at = made, False, report, None
    progress.fetched, progress.fruitless = {}, 0


def is_computable(ctx: Context, work: Work) -> bool:
    """Whether its log-probabilities are there, or the policy to recompute them with: a trainer that went on without a
    checkpoint has no earlier ones, and a kept one may be damaged."""
    version = work.policy_version
    is_kept = version in ctx.exports.list_steps() and version not in ctx.progress.unreadable
    if work.replayed or ctx.config.old_policy == "recompute" or is_kept:
        return True
    get_logger().error("submission left out, its policy is lost", task=work.task, policy=version)
    return False


def fill_in(ctx: Context, samples: list[Sample]) -> list[Sample]:
    """The log-probabilities that the objective asks for; those that nobody replayed are recomputed here, and the
    learner has those of the policy that the step starts from.

    Raises ProtocolError for a damaged policy, whose work the next try leaves out, and OperatorError("no_reference").
    """
    config, recomputer = ctx.config, ctx.recomputer
    if config.old_policy == "recompute":
        samples = [replace(sample, old=None) for sample in samples]
    if recomputer is None:
        return samples

    def recompute(version: Step, missing: Sequence[Sample]) -> list[tuple[float, ...]]:
        try:
            return recomputer.compute(ctx.exports.get_path(version), missing)
        except ProtocolError:
            ctx.progress.unreadable.add(version)
            raise

    if config.old_policy == "behaviour":
        samples = batch.fill_old(samples, recompute)
    if config.kl_coefficient > 0:
        reference = ctx.exports.get_path(Step(0))
        try:
            found = recomputer.compute(reference, samples)
        except ProtocolError as error:
            raise service.build_lost_reference(f"{reference} is damaged ({error.message})") from error
        samples = [replace(sample, reference=each) for sample, each in zip(samples, found, strict=True)]
    return samples


def is_needed(ctx: Context, version: Step, newest: Step) -> bool:
    """Whether a policy may still be recomputed with, referred to or evaluated."""
    is_recent = newest - version <= ctx.network.params.max_staleness
    is_reference = version == 0 and ctx.config.kl_coefficient > 0
    return is_recent or is_reference or version in ctx.background.waiting
