"""The validator's two cycles: one takes turns and reveals committed verdicts, the other one judges and commits."""

import asyncio
import secrets

from covey.errors import ProtocolError
from covey.protocol import eip712, messages
from covey.protocol.api.common import VerdictBody
from covey.protocol.api.validator import JudgeOrder, RevealRequest
from covey.protocol.ids import Hash, hash_from_bytes
from covey.protocol.verdict import Judgement
from covey.runtime.cycle import CycleResult, or_stop
from covey.runtime.log import get_logger
from validator import verdicts
from validator.checks import SubmissionClaim
from validator.context import Context
from validator.evidence_bundle import build_bundle


async def poll(ctx: Context) -> CycleResult:
    """Take a turn if there is room, or reveal a verdict. Polling continues while a turn is judged."""
    claim = ctx.network.coordinator.claim_validation(
        wait_seconds=ctx.config.wait_seconds,
        holding=ctx.turns.held,
        free_turns=ctx.turns.free,
        contract=ctx.tools.contract,
    )
    if not ctx.turns.free:
        claim = or_stop(ctx.turns.has_room, claim)  # this poll requests no turn, so it ends once there is room
    order = await or_stop(ctx.stop, claim)
    if order is None:
        return CycleResult.IDLE
    if isinstance(order, JudgeOrder):
        ctx.turns.add(order)
        return CycleResult.DONE
    return await reveal(ctx, order.judgement)


async def judge_next(ctx: Context) -> CycleResult:
    """Judge the oldest turn and commit to the verdict. An overdue turn is left to other validators."""
    order = await or_stop(ctx.stop, ctx.turns.get_next())
    if order is None:
        return CycleResult.IDLE
    try:
        if ctx.turns.is_late(order):
            get_logger().warning(
                "turn skipped, too late to commit to a verdict", task=order.receipt.task, judgement=order.judgement
            )
            return CycleResult.RETRY
        await commit(ctx, order, await judge(ctx, order))
    finally:
        ctx.turns.close(order)
    return CycleResult.DONE


async def judge(ctx: Context, order: JudgeOrder) -> Judgement:
    """Fetch the file and the policy, and run the checks. The judgement is unknown if fetching or loading fails.

    Raises ProtocolError("wrong_pool") for work of a different pool, which would look like fraud under this pool's
    rules. Raises TransientError if the coordinator or the relays do not respond.
    """
    network, receipt = ctx.network, order.receipt.to_message()
    if receipt.pool != network.pool:
        raise ProtocolError(
            "wrong_pool",
            f"the submission belongs to pool {receipt.pool}, but this validator serves pool {network.pool}",
        )
    try:
        file = await network.coordinator.get_object(order.url, max_bytes=network.params.max_submission_bytes + 1)
        await load_policy(ctx, order)
    except ProtocolError as error:
        get_logger().warning("submission cannot be checked", task=receipt.task, code=error.code, message=error.message)
        return Judgement.unknown(error=error.code)
    except verdicts.MACHINE_FAILURES as error:
        get_logger().error(
            "file or policy could not be loaded", task=receipt.task, error=f"{type(error).__name__}: {error}"
        )
        return Judgement.unknown(error=type(error).__name__)
    claim = SubmissionClaim(
        receipt=receipt,
        signature=order.signature,
        record_hash=order.record_hash,
        contract=order.contract,
        drawn=draw_rows(ctx, order),
        file=file,
    )
    return await asyncio.to_thread(verdicts.judge, claim, ctx.tools, full=order.full)


def draw_rows(ctx: Context, order: JudgeOrder) -> tuple[int, ...]:
    """Return the rows of the order's submission that its drawing block has replayed in any case."""
    return ctx.network.params.draw_rows(eip712.compute_struct_hash(order.receipt.to_message()), order.draw)


async def load_policy(ctx: Context, order: JudgeOrder) -> None:
    """Load the claimed policy into the engine.

    Raises ProtocolError("wrong_record") if the order's record hash differs from the chain's.
    """
    version = order.receipt.policy_version
    if ctx.network.policies.get_record_hash(version) != order.record_hash:
        raise ProtocolError(
            "wrong_record", f"the order has a different record hash for policy {version} than the chain"
        )
    await ctx.loader.load(version, order.record_hash)


async def commit(ctx: Context, order: JudgeOrder, judgement: Judgement) -> None:
    """Sign the verdict, store it with its evidence, and send only the commitment to the coordinator."""
    network = ctx.network
    bundle = build_bundle(judgement, order, ctx.venue, rows=draw_rows(ctx, order))
    verdict = verdicts.build_verdict(
        judgement,
        order.receipt.to_message(),
        evidence_hash=bundle.compute_hash(),
        validator=network.wallet.address,
        now=ctx.clock(),
        seconds=ctx.config.verdict_seconds,
    )
    salt: Hash = hash_from_bytes(secrets.token_bytes(32))
    request = RevealRequest(
        judgement=order.judgement,
        verdict=VerdictBody.of(verdict),
        signature=eip712.sign(verdict, network.receipt_domain, network.wallet),
        salt=salt,
        evidence=bundle.to_bytes().decode(),
    )
    ctx.pending.add(request)
    digest = eip712.compute_digest(verdict, network.receipt_domain)
    await network.coordinator.commit_verdict(order.judgement, messages.compute_commitment(digest, salt))
    get_logger().info(
        "submission judged",
        task=order.receipt.task,
        decision=judgement.decision.name.lower(),
        reason=judgement.reason.name.lower(),
        **judgement.details,
    )


async def reveal(ctx: Context, judgement: int) -> CycleResult:
    """Reveal a committed verdict. If this validator lost the verdict, the turn lapses and another validator judges."""
    request = ctx.pending.find(judgement)
    if request is None:
        get_logger().warning("verdict to reveal not found", judgement=judgement)
        return CycleResult.RETRY  # the coordinator repeats the order until it lapses, so wait before the next poll
    await ctx.network.coordinator.reveal_verdict(request)
    ctx.pending.remove(judgement)
    return CycleResult.DONE
