"""The worker's cycles, which run concurrently: fetch policies, claim leases, generate, sign, submit, send heartbeats.

`leases` contains the leases, and `submission_store` the signed submissions. A crash loses neither leases nor receipts.
"""

import asyncio
from collections.abc import Sequence

from covey import rollouts
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol import eip712
from covey.protocol.api.worker import TaskOrder
from covey.protocol.ids import Hash, Step
from covey.protocol.seeding import SlotDomain
from covey.rollouts import Draft
from covey.runtime.cycle import CycleResult, or_stop
from covey.runtime.log import get_logger
from covey.toploc.topk import build_capture
from worker import receipts
from worker.context import Context
from worker.leases import GeneratedTask
from worker.submission_store import SignedSubmission

FAILURES = 3
"""Number of engine deaths during one lease, or of consecutive hung calls, after which the worker stops."""

REFUSALS = 8
"""Number of final refusals in a row after which the worker stops."""
PROMPT_SECONDS = 60.0
"""Time after the signature in which a refusal counts. A later one may be due to an outage longer than the lease."""


async def fetch(ctx: Context) -> CycleResult:
    """Fetch the newest policy to the disk as soon as it is published on chain, even while the worker is busy.

    Before there is one, fetch pieces of the first one while the trainer exports it.
    """
    loader, policies = ctx.loader, ctx.network.policies
    steps = await asyncio.to_thread(ctx.network.contracts.policies.steps_of, ctx.network.pool)
    recent = [Step(step) for step in range(max(0, steps - 1 - ctx.network.params.max_staleness), steps)]
    loader.fetched &= set(range(steps))  # a reorganisation may remove a policy from the chain
    if not recent:
        has_come = await or_stop(ctx.stop, policies.prefetch())
        return CycleResult.DONE if has_come else CycleResult.IDLE
    if recent[-1] in loader.fetched | loader.refused:
        return CycleResult.IDLE
    if not loader.fetched:  # after a restart the policies on the disk can serve leases at once
        loader.fetched.update(await asyncio.to_thread(policies.list_versions, recent))
    try:
        folder = await or_stop(ctx.stop, policies.require(recent[-1], may_skip=True))
    except ProtocolError as error:
        if error.code == "bad_record":  # the record of a version never changes, so a retry cannot succeed
            loader.refused.add(recent[-1])
        raise
    if folder is not None:
        loader.fetched.add(recent[-1])
        await send_heartbeat(ctx)  # from now on the coordinator may answer a waiting claim with work of this version
    return CycleResult.IDLE


async def claim(ctx: Context) -> CycleResult:
    """Claim a lease if there is room for one and a policy to serve it.

    The engine starts before the claim, so that its start does not use up the lease's time.
    Raises OperatorError("another_instance") if another worker uses this node's key, as `send_heartbeat` does.
    """
    leases = ctx.leases
    version = ctx.loader.newest
    if version is None or not leases.has_room(len(ctx.submissions.list_unsent())):
        return CycleResult.IDLE
    if ctx.engine.policy_version is None and not leases.working:
        await or_stop(ctx.stop, load_policy(ctx, version))  # starting an engine takes minutes
        version = max(version, ctx.loader.newest or version)  # a newer policy may have been fetched meanwhile
    if ctx.stop.is_set():
        return CycleResult.IDLE
    unsent = ctx.submissions.list_unsent()  # read only now, so that submissions signed during the start are included
    # A stop signal does not cancel the claim: a lease assigned at that moment would be held by no worker.
    with receipts.explain_other_instance():
        task = await ctx.network.coordinator.claim_task(
            instance=ctx.instance,
            free_slots=len(leases.ids) + len(unsent) + 1,
            cached_version=version,
            wait_seconds=ctx.config.wait_seconds,
            holding=[*leases.ids, *unsent, *ctx.submissions.list_refused(), *leases.gone],
        )
    if task is None:
        return CycleResult.IDLE
    if task.lease in leases.ids or ctx.submissions.has_signed(task.task, task.lease):
        get_logger().error(
            "lease assigned twice, not signed again because that would be equivocation", lease=task.lease
        )
        return CycleResult.RETRY
    leases.hold(task, seconds=task.deadline - ctx.network.coordinator.now())
    return CycleResult.DONE


async def work(ctx: Context) -> CycleResult:
    """Generate the oldest claimed lease. After a transient engine failure the lease is retried until it expires.

    Raises OperatorError("engine_died") if the engine died FAILURES times during the same lease. Raises
    OperatorError("engine_timeout") if it hung in FAILURES consecutive calls, of any lease.
    """
    leases = ctx.leases
    drop_overdue(ctx)
    task = leases.take()
    if task is None:
        return CycleResult.IDLE
    try:
        await require_servable(ctx, task)
        await load_policy(ctx, task.policy_version, task.record_hash)
        drafts = await asyncio.get_running_loop().run_in_executor(ctx.engine_threads, roll_out, ctx, task)
    except TransientError as error:
        failure = ctx.health.record_failure(error.code, leases.get_working(task))
        leases.requeue(task, deaths=failure.deaths)
        if failure.total >= FAILURES:
            message = f"the engine failed {failure.total} times, most recently on task {task.task}: {error.message}"
            fix = "Read the engine's log, then lower batch or run covey doctor"
            raise OperatorError(error.code, message, fix=fix) from error
        raise
    except ProtocolError:
        leases.abandon(task)
        await return_leases(ctx, [task])
        raise
    ctx.health.record_success()
    leases.finish(task, drafts)
    return CycleResult.DONE


async def drain(ctx: Context) -> None:
    """After the last claim, wait until every lease has left the engine or expired.

    An engine that works only on expired leases is closed, because it might never finish.
    """
    leases = ctx.leases
    while leases.claimed or any(not held.is_forgotten for held in leases.working):
        await asyncio.sleep(0.05)
        drop_overdue(ctx)
    ctx.shutdown.work_over.set()
    if leases.working:
        await asyncio.to_thread(ctx.engine.close)


def drop_overdue(ctx: Context) -> None:
    """Release the expired leases and log each of them."""
    for order in ctx.leases.drop_overdue():
        get_logger().warning("lease expired before its submission was signed", task=order.task)


async def require_servable(ctx: Context, task: TaskOrder) -> None:
    """Raise ProtocolError unless a task's policy is the policy on chain, accepted by the engine and not too stale.

    The codes are "policy_mismatch", "stale" and "wrong_record".
    """
    network, version = ctx.network, task.policy_version
    if version in ctx.loader.refused:
        raise ProtocolError("policy_mismatch", f"the engine refused policy {version}")
    steps = await asyncio.to_thread(network.contracts.policies.steps_of, network.pool)
    if steps - version > network.params.max_staleness + 2:  # the coordinator may lag this chain by one policy
        raise ProtocolError(
            "stale", f"task {task.task} uses policy {version}, which is too old: {steps} policies have been published"
        )
    await asyncio.to_thread(require_record, ctx, task)


def require_record(ctx: Context, task: TaskOrder) -> None:
    """Raise ProtocolError("wrong_record") if a task's policy is not the policy on chain now."""
    if ctx.network.policies.get_record_hash(task.policy_version) != task.record_hash:
        raise ProtocolError("wrong_record", f"the record hash in task {task.task} differs from the one on chain")


async def load_policy(ctx: Context, version: Step, record_hash: Hash | None = None) -> None:
    """Load a policy into the engine, by default the one that is on chain now."""
    await ctx.loader.load(version, record_hash, stop=ctx.shutdown.work_over)


def roll_out(ctx: Context, task: TaskOrder) -> list[Draft]:
    """Generate the drafts of a task. Blocks until the engine has finished."""
    network, engine = ctx.network, ctx.engine
    domain = SlotDomain(
        beacon=task.record_hash,
        pool=network.pool,
        policy_version=task.policy_version,
        node=network.wallet.address,
        task=task.task,
    )
    slots = rollouts.build_slots(domain, task.groups, network.params, environment=ctx.environment, engine=engine)
    capture = build_capture(network.params.verification)
    return rollouts.roll_out(slots, network.params, engine, version=task.policy_version, capture=capture)


async def return_leases(ctx: Context, tasks: Sequence[TaskOrder]) -> None:
    """Return leases that this worker cannot serve, so that other workers get them before they expire."""
    ctx.leases.release(tasks)
    for task in tasks:
        try:
            await ctx.network.coordinator.return_task(task.task, task.lease)
        except (ProtocolError, TransientError) as error:  # the lease expires anyway, or is assigned here again
            if isinstance(error, TransientError) and task.lease in ctx.leases.gone:
                ctx.leases.gone.remove(task.lease)
            get_logger().warning("lease not returned", task=task.task, code=error.code, message=error.message)


async def sign_next(ctx: Context) -> CycleResult:
    """Prove, grade, sign and store the oldest generated task.

    This does not wait for submissions that are being sent.
    """
    leases, shutdown = ctx.leases, ctx.shutdown
    drop_overdue(ctx)
    if not leases.generated:
        if shutdown.work_over.is_set():
            shutdown.signing_over.set()
        return CycleResult.IDLE
    generated = leases.generated[0]
    if ctx.submissions.has_signed(generated.order.task, generated.order.lease):  # assigned again meanwhile
        get_logger().error(
            "lease assigned twice, not signed again because that would be equivocation", lease=generated.order.lease
        )
        leases.release([generated.order])
        return CycleResult.DONE
    signing = asyncio.ensure_future(asyncio.to_thread(sign, ctx, generated))
    try:
        await asyncio.shield(signing)
    except asyncio.CancelledError:  # the thread continues; only its end shows whether a receipt was signed
        await asyncio.wait([signing])
        raise
    except ProtocolError:
        await return_leases(ctx, [generated.order])
        raise
    leases.release([generated.order])
    return CycleResult.DONE


async def submit_pending(ctx: Context) -> CycleResult:
    """Send all submissions that have not been countersigned yet."""
    if ctx.shutdown.signing_over.is_set():
        ctx.shutdown.all_over.set()  # submissions that cannot be sent now are sent after the next start
    waiting, failures = list(ctx.submissions.list()), list[TransientError]()
    for submission in waiting:
        try:
            await submit(ctx, submission)
        except TransientError as error:  # may concern this submission only, so the others are still tried
            failures.append(error)
    if failures:
        raise failures[0]
    return CycleResult.DONE if waiting else CycleResult.IDLE


def sign(ctx: Context, generated: GeneratedTask) -> None:
    """Build a task's file, sign its receipt and store both. After that the submission survives a crash.

    Raises ProtocolError("wrong_record") if a reorganisation replaced the policy, because the work would look like
    fraud.
    """
    network, params = ctx.network, ctx.network.params
    require_record(ctx, generated.order)
    first_time = network.chain.get_block("latest").timestamp
    grades = rollouts.grade_drafts(generated.drafts, ctx.grade)
    rows = rollouts.build_rollouts(generated.drafts, grades, contract=ctx.contract)
    from covey.protocol.submission_file.codec import encode  # late: Parquet starts a thread, and forks must not copy it

    file = encode(rows)
    receipt = receipts.build_receipt(
        generated.order,
        params,
        pool=network.pool,
        node=network.wallet.address,
        contributor=ctx.contributor,
        rollouts=rows,
        file=file,
        now=ctx.clock(),
    )
    submission = SignedSubmission(
        receipt=receipt,
        signature=eip712.sign(receipt, network.receipt_domain, network.wallet),
        file=file,
        first_time=first_time,
    )
    ctx.submissions.add(submission)


async def submit(ctx: Context, submission: SignedSubmission) -> None:
    """Send a submission and keep the operator's promise. A final refusal drops the submission.

    Raises OperatorError("work_refused") after REFUSALS final refusals in a row: the operator may take files and promise
    nothing. Raises TransientError after any other failure. The submission is then sent again.
    """
    network, receipt, log = ctx.network, submission.receipt, get_logger()
    try:
        answer = await network.coordinator.submit(receipt, submission.signature, submission.file)
        receipts.require_promise(
            answer,
            receipt,
            domain=network.ledger_domain,
            signer=await asyncio.to_thread(network.contracts.pools.signer_at, network.pool, answer.signed_at),
            first_time=submission.first_time,
            now=ctx.clock(),
            draw_seconds=network.params.verification.draw_seconds,
            epoch_length=network.terms.epoch_length,
        )
    except ProtocolError as error:
        receipts.require_final(error)
        log.warning("submission refused", task=receipt.task, code=error.code, message=error.message)
        is_late = ctx.clock() - submission.first_time > PROMPT_SECONDS
        ctx.submissions.close(submission, error, is_late=is_late)
        if ctx.submissions.refused_in_a_row >= REFUSALS:
            raise OperatorError(
                "work_refused",
                f"the operator refused {REFUSALS} submissions in a row, the last one for {error.code}: {error.message}",
                fix=f"Ask the operator, and show the receipts in {ctx.submissions.refused}",
            ) from error
        return
    ctx.submissions.close(submission, answer)
    ctx.funds.waiting_units += receipt.units
    log.info("submission countersigned", task=receipt.task, policy=receipt.policy_version, units=receipt.units)


async def send_heartbeat(ctx: Context) -> CycleResult:
    """Send a heartbeat. Heartbeats continue during a long generation.

    Raises OperatorError("another_instance") if another worker uses this node's key.
    """
    unsent = ctx.submissions.list_unsent()
    slots = len(ctx.leases.ids) + len(unsent) + ctx.leases.has_room(len(unsent))
    with receipts.explain_other_instance():
        await ctx.network.coordinator.send_heartbeat(
            instance=ctx.instance, free_slots=slots, cached_version=ctx.loader.newest
        )
    return CycleResult.IDLE
