"""The trainer's cycles, beside each other: learn from the next batch, publish what was made.  One verb a line."""

import asyncio

from covey.errors import ProtocolError
from covey.protocol.api.trainer import BatchItem, BatchOrder
from covey.protocol.ids import Step
from covey.runtime.cycle import CycleResult, Pace, or_stop, run_forever, wait_or_stop
from covey.runtime.log import get_logger
from trainer import service
from trainer.app import Context
from trainer.batch import Work
from trainer.disk import ExplainFullDisk
from trainer.learning import learn
from trainer.progress import Offered

PUMP_SECONDS = 0.05
DOWNLOADS = 8
WRONG_FILE = {"digest_mismatch", "oversized"}
"""What no repetition mends."""
TRIES = 2
"""Orders of which no file was new, after which the files that are refused are taken for lost: a store says so for links
that ran out too."""


async def run_cycles(ctx: Context, *, pace: Pace | None = None) -> None:
    """Both until the last step or a stop signal.  Whatever fails first ends the others and is raised, but an update
    under way is finished: other processes may be at it too."""
    failures: list[BaseException] = []

    def end(task: asyncio.Task[None]) -> None:
        ctx.stop.set()
        if not task.cancelled() and (failure := task.exception()) is not None:
            failures.append(failure)

    tasks = [asyncio.create_task(run_forever(each, ctx, stop=ctx.stop, pace=pace)) for each in (cycle, publish)]
    for task in tasks:
        task.add_done_callback(end)
    await asyncio.gather(*tasks, return_exceptions=True)
    failures += [each for each in await asyncio.gather(ctx.background.stop(), return_exceptions=True) if each]
    for other in failures[1:]:
        if other is not failures[0]:
            get_logger().error("failed, too", message=str(other))
    if failures:
        raise failures[0]


async def cycle(ctx: Context) -> CycleResult:
    """Take one step; the policies that it makes are published beside it."""
    progress = ctx.progress
    evaluate(ctx)
    if service.is_finished(progress.step, ctx.config.steps):
        return await finish(ctx)
    if service.is_ahead(progress.step, progress.unpublished, max_staleness=ctx.network.params.max_staleness):
        return CycleResult.IDLE
    order = await or_stop(ctx.stop, claim(ctx))
    if order is None:
        return CycleResult.IDLE
    works = await fetch(ctx, order)
    waited = ctx.timer() - progress.waiting_since
    await asyncio.to_thread(learn, ctx, works, waited)
    return CycleResult.DONE


async def publish(ctx: Context) -> CycleResult:
    """Have the oldest policy that is not published in the origin and on chain; if all are, see that they stay there."""
    progress, loop = ctx.progress, asyncio.get_running_loop()
    step = progress.unpublished
    if step > progress.step:
        with ExplainFullDisk(ctx.config.home, "the outbox"):
            await loop.run_in_executor(ctx.chain_thread, ctx.publisher.watch, step)
        return CycleResult.IDLE
    if progress.offered is None:
        progress.offered = await loop.run_in_executor(ctx.chain_thread, offer, ctx, step)
    offered = progress.offered
    with ExplainFullDisk(ctx.config.home, "the outbox"):
        while not await loop.run_in_executor(ctx.chain_thread, ctx.publisher.advance, step, offered.manifest_hash):
            if await wait_or_stop(ctx.stop, PUMP_SECONDS):
                return CycleResult.IDLE
    times = {"time/publish": offered.seconds, "time/wait_for_chain": ctx.timer() - offered.at}
    ctx.metrics.record("policy", step, {"manifest_hash": offered.manifest_hash, "time": ctx.clock(), **times})
    progress.unpublished, progress.offered = Step(step + 1), None
    get_logger().info("published", step=step, manifest_hash=offered.manifest_hash)
    return CycleResult.DONE


def offer(ctx: Context, step: Step) -> Offered:
    """Have a policy in the origin."""
    started = ctx.timer()
    with ExplainFullDisk(ctx.config.origin_root, f"policy {step}"):
        manifest_hash = ctx.publisher.offer(ctx.exports.get_path(step), step)
    at = ctx.timer()
    return Offered(manifest_hash=manifest_hash, seconds=at - started, at=at)


def evaluate(ctx: Context) -> None:
    """Order the evaluation of every kept policy that has none."""
    config = ctx.config
    for step in ctx.exports.list_steps():
        is_wanted = service.is_evaluated(step, steps=config.steps, every=config.evaluation_every)
        if is_wanted and not ctx.metrics.has("evaluation", step):
            ctx.background.add(step)


async def finish(ctx: Context) -> CycleResult:
    """The last policy is made: once it is out, wait for the evaluations and end the process."""
    if ctx.progress.unpublished <= ctx.progress.step:
        return CycleResult.IDLE
    await ctx.background.finish()
    get_logger().info("training is done", step=ctx.progress.step)
    ctx.stop.set()
    return CycleResult.DONE


async def claim(ctx: Context) -> BatchOrder | None:
    """Wait for the batch of the newest step."""
    return await ctx.network.coordinator.claim_batch(ctx.progress.step, wait_seconds=ctx.config.wait_seconds)


def read(ctx: Context, item: BatchItem, file: bytes) -> Work | None:
    """The content of a file; None for what cannot be trained on.  What no quorum replayed is graded again."""
    params, vocabulary = ctx.network.params, ctx.learner.vocabulary
    work = service.read_work(item, file, params, vocabulary=vocabulary, decode=ctx.decode)
    return work if work is None or item.replayed else ctx.regrader.regrade(item, work)


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
            found[item.task] = await asyncio.to_thread(read, ctx, item, file)
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
