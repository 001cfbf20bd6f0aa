"""The trainer's two concurrent cycles: one learns from the next batch, the other publishes new policies."""

import asyncio

from covey.errors import ProtocolError
from covey.protocol.api.trainer import BatchOrder, LearningReport
from covey.protocol.ids import Step
from covey.runtime.cycle import CycleMetrics, CycleResult, Pace, or_stop, run_forever, wait_or_stop
from covey.runtime.full_disk import ExplainFullDisk
from covey.runtime.log import get_logger
from trainer.context import Context, LearningContext, Offered
from trainer.data.intake import fetch
from trainer.schedule import is_ahead, is_evaluated, is_finished
from trainer.train_step import learn, save_newest

PUMP_SECONDS = 0.05
"""Seconds between two attempts to advance a publication."""


async def run_cycles(ctx: Context, *, pace: Pace | None = None, metrics: CycleMetrics | None = None) -> None:
    """Run both cycles until the last step or a stop signal. `metrics` count those of training.

    The first failure ends the other cycle and is raised. A running update is finished first, because other ranks may be
    working on it, too. Without a failure the newest step has a checkpoint at the end.
    """
    failures: list[BaseException] = []

    def end(task: asyncio.Task[None]) -> None:
        ctx.stop.set()
        if not task.cancelled() and (failure := task.exception()) is not None:
            failures.append(failure)

    tasks = [
        asyncio.create_task(run_forever(each, ctx, stop=ctx.stop, pace=pace, metrics=counted))
        for each, counted in ((cycle, metrics), (publish, None))
    ]
    for task in tasks:
        task.add_done_callback(end)
    await asyncio.gather(*tasks, return_exceptions=True)
    endings = (ctx.background.stop(), finish_jump(ctx), asyncio.to_thread(ctx.saver.close))
    failures += [each for each in await asyncio.gather(*endings, return_exceptions=True) if each]
    for other in failures[1:]:
        if other is not failures[0]:
            get_logger().error("another failure in the trainer", message=str(other))
    if failures:
        raise failures[0]
    await asyncio.to_thread(save_newest, ctx)


async def cycle(ctx: Context) -> CycleResult:
    """Take one step. Its policy is published while the next step runs."""
    progress = ctx.progress
    evaluate(ctx)
    await report_learning(ctx)
    if is_finished(progress.step, ctx.config.steps):
        return await finish(ctx)
    if is_ahead(progress.step, progress.unpublished, max_staleness=ctx.network.params.max_staleness):
        return CycleResult.IDLE
    order = await or_stop(ctx.stop, claim(ctx))
    if order is None:
        return CycleResult.IDLE
    works = await fetch(ctx, order)
    waited = ctx.timer() - progress.waiting_since
    await asyncio.to_thread(learn, ctx, works, waited)
    progress.fetched, progress.fruitless = {}, 0
    return CycleResult.DONE


async def report_learning(ctx: Context) -> None:
    """Report after each step whether the run can learn. Ask for a pause of new tasks if it has been dead for long.

    The pause is recorded once the coordinator has it. A repeated request, after a crash in between, pauses nothing that
    the operator has resumed.
    """
    progress, metrics = ctx.progress, ctx.metrics
    step = progress.written  # the metrics of later steps are not recorded yet
    if progress.reported == step:
        return
    is_due, signs = metrics.is_pause_due, metrics.signs
    try:
        await ctx.network.coordinator.report_learning(
            LearningReport(
                steps=step,
                signs=signs,
                pause=is_due,
                point=metrics.find_point(step - 1),
                task_types=metrics.list_task_types(step - 1),
            )
        )
    except ProtocolError as error:  # training does not depend on it
        get_logger().warning("alarms are not reported", code=error.code, message=error.message)
        is_due = False
    progress.reported = step
    if is_due:
        dead_steps = ctx.config.stop_when_dead
        metrics.record("pause", step - 1, {"dead_steps": dead_steps})
        get_logger().error(
            "new tasks are paused, because the run cannot learn",
            dead_steps=dead_steps,
            advice=[sign.advice for sign in signs],
            resume="covey pool resume FOLDER",
        )


async def publish(ctx: Context) -> CycleResult:
    """Publish the oldest unpublished policy to the origin and on chain.

    If there is none, check that all are still on chain.
    """
    progress, loop = ctx.progress, asyncio.get_running_loop()
    ctx.saver.check()
    step = progress.unpublished
    if step > progress.written:
        with ExplainFullDisk(ctx.config.home, "the outbox"):
            await loop.run_in_executor(ctx.chain_thread, ctx.publisher.watch, step)
        return CycleResult.IDLE
    if progress.offered is None:
        await finish_jump(ctx)  # Both write to the origin.
        progress.offered = await loop.run_in_executor(ctx.chain_thread, offer, ctx, step)
    offered = progress.offered
    with ExplainFullDisk(ctx.config.home, "the outbox"):
        while not await loop.run_in_executor(ctx.chain_thread, ctx.publisher.advance, step, offered.record_hash):
            if await wait_or_stop(ctx.stop, PUMP_SECONDS):
                return CycleResult.IDLE
    times = {"time/publish": offered.seconds, "time/wait_for_chain": ctx.timer() - offered.at}
    ctx.metrics.record("policy", step, {"record_hash": offered.record_hash, "time": ctx.clock(), **times})
    progress.unpublished, progress.offered = Step(step + 1), None
    get_logger().info("policy published", step=step, record_hash=offered.record_hash)
    progress.jump = asyncio.create_task(add_jump(ctx, step))
    return CycleResult.DONE


async def add_jump(ctx: Context, step: Step) -> None:
    """Add the delta from the last anchor. Until it is there, the chain is still watched."""
    try:
        await asyncio.to_thread(ctx.publisher.add_jump)
    except (OSError, ProtocolError) as error:  # The policy is published, and clients reach it without this delta.
        get_logger().warning("no delta from the last anchor was made", step=step, reason=str(error))


async def finish_jump(ctx: Context) -> None:
    """Wait for the addition of the last delta from an anchor. Raises its error once."""
    jump, ctx.progress.jump = ctx.progress.jump, None
    if jump is not None:
        await jump


def offer(ctx: Context, step: Step) -> Offered:
    """Write a policy to the origin."""
    started = ctx.timer()
    base = ctx.exports.get_path(Step(step - 1)) if step - 1 in ctx.exports.list_steps() else None
    with ExplainFullDisk(ctx.config.origin_root, f"policy {step}"):
        record_hash = ctx.publisher.offer(ctx.exports.get_path(step), step, base_folder=base)
    at = ctx.timer()
    return Offered(record_hash=record_hash, seconds=at - started, at=at)


def evaluate(ctx: LearningContext) -> None:
    """Start the evaluation of each kept policy that is due and not evaluated yet."""
    config, written = ctx.config, ctx.progress.written
    for step in ctx.exports.list_steps():
        if step > written:  # it may still be lost, and another policy would take its place
            continue
        is_due = is_evaluated(step, steps=config.steps, every=config.eval.every)
        if is_due and not ctx.metrics.has("evaluation", step):
            ctx.background.add(step)
    ctx.progress.considered = written


async def finish(ctx: Context) -> CycleResult:
    """After the last policy is published, wait for the evaluations and end the process."""
    if ctx.progress.unpublished <= ctx.progress.step:
        return CycleResult.IDLE
    await ctx.background.finish()
    get_logger().info("training finished", step=ctx.progress.step)
    ctx.stop.set()
    return CycleResult.DONE


async def claim(ctx: Context) -> BatchOrder | None:
    """Wait for the batch from which the policy of `progress.step` learns."""
    return await ctx.network.coordinator.claim_batch(ctx.progress.step, wait_seconds=ctx.config.wait_seconds)
