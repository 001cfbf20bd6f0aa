"""The worker's cycle: one task from claim to countersignature, one verb a line."""

import asyncio

from covey.errors import ProtocolError
from covey.log import get_logger
from covey.protocol import messages, rollout
from covey.protocol.ids import Step
from covey.protocol.wire import TaskOrder
from covey.runtime import Outcome, or_stop
from worker import service
from worker.app import Context
from worker.outgoing import Parcel


async def cycle(ctx: Context) -> Outcome:
    """Send what a crash left unsent, then claim, roll out, prove and submit."""
    for parcel in list(ctx.outgoing.list()):
        await submit(ctx, parcel)
    await prefetch(ctx)
    claim = ctx.network.coordinator.claim_task(
        free_slots=1,
        cached_version=ctx.engine.policy_version,
        wait_seconds=ctx.config.wait_seconds,
        holding=ctx.outgoing.list_refused(),
    )
    task = await or_stop(ctx.stop, claim)
    if task is None:
        return Outcome.IDLE
    if ctx.outgoing.has_signed(task.task, task.lease):
        get_logger().error("a lease was given twice, signing again would be equivocation", lease=task.lease)
        return Outcome.RETRY
    await load_policy(ctx, task)
    parcel = await asyncio.to_thread(roll_out, ctx, task)
    await submit(ctx, parcel)
    return Outcome.DONE


async def prefetch(ctx: Context) -> None:
    """Have the newest policy on disk before a lease's clock runs."""
    network = ctx.network
    newest = await asyncio.to_thread(network.contracts.policies.steps_of, network.pool) - 1
    if newest >= 0:
        await network.policies.require(Step(newest))


async def load_policy(ctx: Context, task: TaskOrder) -> None:
    """Have the task's policy in the engine; its hash is the chain's, or nothing is generated."""
    network = ctx.network
    if network.policies.get_manifest_hash(task.policy_version) != task.manifest_hash:
        raise ProtocolError("wrong_manifest", f"task {task.task} names another manifest than the chain")
    if ctx.engine.policy_version != task.policy_version:
        folder = await network.policies.require(task.policy_version)
        await asyncio.to_thread(ctx.engine.load_policy, folder, task.policy_version)


def roll_out(ctx: Context, task: TaskOrder) -> Parcel:
    """Generate, prove, grade, sign and store; the parcel survives a crash from here on."""
    network, params = ctx.network, ctx.network.params
    slots = service.build_slots(
        task,
        params,
        pool=network.pool,
        node=network.wallet.address,
        environment=ctx.environment,
        engine=ctx.engine,
    )
    rollouts = service.roll_out(slots, params, engine=ctx.engine, spec=network.environment, grade=ctx.grade)
    file = rollout.encode(rollouts)
    receipt = service.build_receipt(
        task,
        params,
        pool=network.pool,
        node=network.wallet.address,
        contributor=ctx.contributor,
        rollouts=rollouts,
        file=file,
        now=ctx.clock(),
    )
    signature = messages.sign(receipt, network.receipt_domain, network.wallet)
    parcel = Parcel(
        receipt=receipt,
        signature=signature,
        file=file,
        first_block=network.chain.block_number(),
        first_epochs=network.contracts.ledger.epochs_of(network.pool),
    )
    ctx.outgoing.add(parcel)
    return parcel


async def submit(ctx: Context, parcel: Parcel) -> None:
    """Send a parcel and keep the operator's promise; what is refused for good is dropped, anything else sent again."""
    network, log = ctx.network, get_logger()
    receipt = parcel.receipt
    try:
        answer = await network.coordinator.submit(receipt, parcel.signature, parcel.file)
        service.require_promise(
            answer,
            receipt,
            domain=network.ledger_domain,
            operator=network.operator,
            first_block=parcel.first_block,
            last_block=await asyncio.to_thread(network.chain.block_number),
            first_epochs=parcel.first_epochs,
            last_epochs=await asyncio.to_thread(network.contracts.ledger.epochs_of, network.pool),
        )
    except ProtocolError as error:
        service.require_final(error)
        log.warning("submission refused", task=receipt.task, code=error.code, message=error.message)
        ctx.outgoing.close(parcel, None)
        return
    ctx.outgoing.close(parcel, answer)
    log.info("submitted", task=receipt.task, policy=receipt.policy_version, units=receipt.units)


async def send_heartbeat(ctx: Context) -> Outcome:
    """A sign of life while a long generation runs."""
    await ctx.network.coordinator.send_heartbeat(free_slots=0, cached_version=ctx.engine.policy_version)
    return Outcome.IDLE
