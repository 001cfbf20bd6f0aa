"""The worker's cycles, each one verb a line: fetch policies, claim leases, generate, seal, hand in; beside each other.

What is in hand lies in `pipeline`, what is signed in `outgoing`: a crash loses neither a lease nor a receipt.
"""

import asyncio
from collections.abc import Sequence

from covey.engines.pool_policies import load_pool_policy
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol import eip712
from covey.protocol.api.worker import TaskOrder
from covey.protocol.ids import Hash, Step
from covey.runtime.cycle import CycleResult, or_stop
from covey.runtime.log import get_logger
from worker import generation, receipts
from worker.context import Context
from worker.generation import Draft
from worker.leases import GeneratedTask
from worker.submission_store import SignedSubmission

FAILURES = 3
"""Deaths of the engine over one lease, or calls in a row at which it hung, until the worker gives up."""


async def fetch(ctx: Context) -> CycleResult:
    """Have the newest policy on the disk as soon as the chain names it, whatever is in hand."""
    pipeline, policies = ctx.pipeline, ctx.network.policies
    steps = await asyncio.to_thread(ctx.network.contracts.policies.steps_of, ctx.network.pool)
    recent = [Step(each) for each in range(max(0, steps - 1 - ctx.network.params.max_staleness), steps)]
    pipeline.fetched &= set(range(steps))  # a reorganisation undoes a policy
    if not recent or recent[-1] in pipeline.fetched | pipeline.refused:
        return CycleResult.IDLE
    if not pipeline.fetched:  # after a restart there is something to go on with
        pipeline.fetched.update(await asyncio.to_thread(policies.list_versions, recent))
    try:
        folder = await or_stop(ctx.stop, policies.require(recent[-1]))
    except ProtocolError as error:
        if error.code == "bad_manifest":  # it will not get better
            pipeline.refused.add(recent[-1])
        raise
    if folder is not None:
        pipeline.fetched.add(recent[-1])
        await send_heartbeat(ctx)  # a claim that waits may be given its work from now on
    return CycleResult.IDLE


async def claim(ctx: Context) -> CycleResult:
    """Collect a lease where there is room for one and a policy to serve it with, before its clock runs.

    Raises OperatorError("another_instance") where another worker has this node's key, as `send_heartbeat` does.
    """
    pipeline = ctx.pipeline
    version = pipeline.cached_version
    if version is None or not pipeline.has_room(len(ctx.outgoing.list_unsent())):
        return CycleResult.IDLE
    if ctx.engine.policy_version is None and not pipeline.working:
        await or_stop(ctx.stop, load_policy(ctx, version))  # starting an engine takes minutes
        version = max(version, pipeline.cached_version or version)  # a newer one may have come meanwhile
    if ctx.stop.is_set():
        return CycleResult.IDLE
    unsent = ctx.outgoing.list_unsent()  # only now: what was signed meanwhile is still in hand
    # Not cut off by a stop signal: what is assigned meanwhile would be nobody's.
    with receipts.explain_other_instance():
        task = await ctx.network.coordinator.claim_task(
            instance=ctx.instance,
            free_slots=len(pipeline.leases) + len(unsent) + 1,
            cached_version=version,
            wait_seconds=ctx.config.wait_seconds,
            holding=[*pipeline.leases, *unsent, *ctx.outgoing.list_refused(), *pipeline.gone],
        )
    if task is None:
        return CycleResult.IDLE
    if task.lease in pipeline.leases or ctx.outgoing.has_signed(task.task, task.lease):
        get_logger().error("a lease was given twice, signing again would be equivocation", lease=task.lease)
        return CycleResult.RETRY
    pipeline.hold(task, seconds=task.deadline - ctx.network.coordinator.now())
    return CycleResult.DONE


async def work(ctx: Context) -> CycleResult:
    """Generate what was claimed; an engine that fails for now tries the same lease again until it runs out.

    Raises OperatorError("engine_died") where it only dies of it, and OperatorError("engine_timeout") where it hangs
    whatever it is given.
    """
    pipeline = ctx.pipeline
    drop_overdue(ctx)
    task = pipeline.take()
    if task is None:
        return CycleResult.IDLE
    try:
        await require_servable(ctx, task)
        await load_policy(ctx, task.policy_version, task.manifest_hash)
        drafts = await asyncio.get_running_loop().run_in_executor(ctx.engine_threads, roll_out, ctx, task)
    except TransientError as error:
        failures = pipeline.put_back(task, code=error.code)
        if failures >= FAILURES:
            message = f"{failures} times, at last over task {task.task}: {error.message}"
            fix = "See what it wrote; lower batch, or run covey doctor"
            raise OperatorError(error.code, message, fix=fix) from error
        raise
    except ProtocolError:
        pipeline.abandon(task)
        await return_leases(ctx, [task])
        raise
    pipeline.finish(task, drafts)
    return CycleResult.DONE


async def drain(ctx: Context) -> None:
    """After the last claim: wait until every lease is through the engine or ran out; an engine that works on overdue
    ones alone is closed, as it might never be done."""
    pipeline = ctx.pipeline
    while pipeline.claimed or any(not held.is_forgotten for held in pipeline.working):
        await asyncio.sleep(0.05)
        drop_overdue(ctx)
    pipeline.work_over.set()
    if pipeline.working:
        await asyncio.to_thread(ctx.engine.close)


def drop_overdue(ctx: Context) -> None:
    for order in ctx.pipeline.drop_overdue():
        get_logger().warning("a lease ran out before it was signed for", task=order.task)


async def require_servable(ctx: Context, task: TaskOrder) -> None:
    """The policy that a task names is the chain's, one that the engine takes and young enough to be handed in."""
    network, version = ctx.network, task.policy_version
    if version in ctx.pipeline.refused:
        raise ProtocolError("policy_mismatch", f"the engine did not take policy {version}")
    steps = await asyncio.to_thread(network.contracts.policies.steps_of, network.pool)
    if steps - version > network.params.max_staleness + 2:  # the coordinator may be a policy behind this chain
        raise ProtocolError("stale", f"task {task.task} is of policy {version}, of {steps} that were published")
    await asyncio.to_thread(require_manifest, ctx, task)


def require_manifest(ctx: Context, task: TaskOrder) -> None:
    """The policy of a task is the one that the chain holds now."""
    if ctx.network.policies.get_manifest_hash(task.policy_version) != task.manifest_hash:
        raise ProtocolError("wrong_manifest", f"task {task.task} names another manifest than the chain")


async def load_policy(ctx: Context, version: Step, manifest_hash: Hash | None = None) -> None:
    """Have a policy in the engine, by default the one that the chain holds now; one at a time, as leases of the same
    one come beside each other."""
    pipeline = ctx.pipeline
    async with pipeline.loading:
        required = ctx.network.policies.require(version, manifest_hash, to_load=True)
        folder = await or_stop(pipeline.work_over, required)
        if folder is None:
            raise TransientError("stopped", f"policy {version} was not there when the work was over")
        if (ctx.engine.policy_version, pipeline.loaded) == (version, folder):
            return
        pipeline.loaded = None  # whatever is in the engine if this fails
        try:
            await asyncio.to_thread(load_pool_policy, ctx.engine, folder, version, ctx.network.params.model)
        except ProtocolError:
            pipeline.refused.add(version)
            raise
        pipeline.loaded = folder


def roll_out(ctx: Context, task: TaskOrder) -> list[Draft]:
    """What the engine makes of a task."""
    network, engine = ctx.network, ctx.engine
    slots = generation.build_slots(
        task, network.params, pool=network.pool, node=network.wallet.address, environment=ctx.environment, engine=engine
    )
    return generation.roll_out(slots, network.params, engine, version=task.policy_version)


async def return_leases(ctx: Context, tasks: Sequence[TaskOrder]) -> None:
    """Return leases that this worker cannot serve, so that another need not wait for their end."""
    ctx.pipeline.let_go(tasks)
    for task in tasks:
        try:
            await ctx.network.coordinator.return_task(task.task, task.lease)
        except (ProtocolError, TransientError) as error:  # it runs out by itself, or comes again
            if isinstance(error, TransientError) and task.lease in ctx.pipeline.gone:
                ctx.pipeline.gone.remove(task.lease)
            get_logger().warning("a lease was not returned", task=task.task, code=error.code, message=error.message)


async def sign_next(ctx: Context) -> CycleResult:
    """Prove, grade, sign and store the oldest of what was generated, whatever becomes of what is being sent."""
    pipeline = ctx.pipeline
    drop_overdue(ctx)
    if not pipeline.made:
        if pipeline.work_over.is_set():
            pipeline.sealing_over.set()
        return CycleResult.IDLE
    made = pipeline.made[0]
    if ctx.outgoing.has_signed(made.order.task, made.order.lease):  # given again while the first one was being signed
        get_logger().error("a lease was given twice, signing again would be equivocation", lease=made.order.lease)
        pipeline.let_go([made.order])
        return CycleResult.DONE
    signing = asyncio.ensure_future(asyncio.to_thread(sign, ctx, made))
    try:
        await asyncio.shield(signing)
    except asyncio.CancelledError:  # its thread goes on: whether the lease is signed for is known when it is over
        await asyncio.wait([signing])
        raise
    except ProtocolError:
        await return_leases(ctx, [made.order])
        raise
    pipeline.let_go([made.order])
    return CycleResult.DONE


async def submit_pending(ctx: Context) -> CycleResult:
    """Send all that nobody has countersigned yet."""
    if ctx.pipeline.sealing_over.is_set():
        ctx.pipeline.all_over.set()  # what cannot be sent now is sent after the next start
    parcels, failures = list(ctx.outgoing.list()), list[TransientError]()
    for parcel in parcels:
        try:
            await submit(ctx, parcel)
        except TransientError as error:  # its own, perhaps: the others are tried all the same
            failures.append(error)
    if failures:
        raise failures[0]
    return CycleResult.DONE if parcels else CycleResult.IDLE


def sign(ctx: Context, made: GeneratedTask) -> None:
    """The task's file and receipt; the parcel survives a crash from here on.

    Raises ProtocolError("wrong_manifest") for what was made before a reorganisation: by now it would look like fraud.
    """
    network, params = ctx.network, ctx.network.params
    require_manifest(ctx, made.order)
    first_time = network.chain.get_block("latest").timestamp
    first_epochs = network.contracts.ledger.epochs_of(network.pool)
    rollouts = generation.build_rollouts(made.drafts, ctx.grade)
    from covey.protocol.submission_file.codec import encode  # late: Parquet starts a thread, which no fork may inherit

    file = encode(rollouts)
    receipt = receipts.build_receipt(
        made.order,
        params,
        pool=network.pool,
        node=network.wallet.address,
        contributor=ctx.contributor,
        rollouts=rollouts,
        file=file,
        now=ctx.clock(),
    )
    parcel = SignedSubmission(
        receipt=receipt,
        signature=eip712.sign(receipt, network.receipt_domain, network.wallet),
        file=file,
        first_time=first_time,
        first_epochs=first_epochs,
    )
    ctx.outgoing.add(parcel)


async def submit(ctx: Context, parcel: SignedSubmission) -> None:
    """Send a parcel and keep the operator's promise; what is refused for good is dropped, anything else sent again."""
    network, receipt, log = ctx.network, parcel.receipt, get_logger()
    try:
        answer = await network.coordinator.submit(receipt, parcel.signature, parcel.file)
        receipts.require_promise(
            answer,
            receipt,
            domain=network.ledger_domain,
            operator=network.operator,
            earliest=parcel.first_time - network.params.verification.draw_seconds,
            latest=int(ctx.clock()) + receipts.MOST_AHEAD_SECONDS,
            first_epochs=parcel.first_epochs,
            last_epochs=await asyncio.to_thread(network.contracts.ledger.epochs_of, network.pool),
        )
    except ProtocolError as error:
        receipts.require_final(error)
        log.warning("submission refused", task=receipt.task, code=error.code, message=error.message)
        ctx.outgoing.close(parcel, None)
        return
    ctx.outgoing.close(parcel, answer)
    log.info("submitted", task=receipt.task, policy=receipt.policy_version, units=receipt.units)


async def send_heartbeat(ctx: Context) -> CycleResult:
    """A sign of life while a long generation runs."""
    unsent = ctx.outgoing.list_unsent()
    slots = len(ctx.pipeline.leases) + len(unsent) + ctx.pipeline.has_room(len(unsent))
    with receipts.explain_other_instance():
        await ctx.network.coordinator.send_heartbeat(
            instance=ctx.instance, free_slots=slots, cached_version=ctx.pipeline.cached_version
        )
    return CycleResult.IDLE
