"""The validator's two cycles: one takes turns and reveals committed verdicts, the other one judges and commits."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

from covey.errors import ProtocolError, TransientError
from covey.protocol import eip712, messages
from covey.protocol.api.common import VerdictBody
from covey.protocol.api.validator import JudgeOrder, RevealOrder, RevealRequest
from covey.protocol.ids import Hash, hash_from_bytes
from covey.protocol.verdict import Judgement
from covey.runtime.cycle import CycleResult, or_stop
from covey.runtime.log import get_logger
from validator import verdicts
from validator.checks import SubmissionClaim
from validator.context import Context
from validator.evidence_bundle import build_bundle
from validator.verdicts import PartialJudgement

Fetched = TypeVar("Fetched")
Failure = TransientError | ProtocolError
"""Error that belongs to one turn. Nothing is said about its submission."""
CHEAP_SHARE = 0.25
"""Share of the time to the first deadline of a pass in which its submissions are checked before their replay."""


async def poll(ctx: Context) -> CycleResult:
    """Take turns if there is room, and reveal verdicts. Polling continues while turns are judged."""
    claim: Coroutine[Any, Any, Sequence[JudgeOrder | RevealOrder] | None]
    claim = ctx.network.coordinator.claim_validations(
        wait_seconds=ctx.config.wait_seconds,
        holding=ctx.turns.held,
        free_turns=ctx.turns.free,
        free_replays=ctx.turns.free_replays,
        contract=ctx.tools.contract,
    )
    if not ctx.turns.free:
        claim = or_stop(ctx.turns.has_room, claim)  # this poll requests no turn, so it ends once there is room
    orders = await or_stop(ctx.stop, claim)
    for order in orders or ():
        if isinstance(order, JudgeOrder):
            ctx.turns.add(order)
    reveals = [order.judgement for order in orders or () if not isinstance(order, JudgeOrder)]
    if reveals:
        return await reveal_all(ctx, reveals)
    return CycleResult.DONE if orders else CycleResult.IDLE


async def judge_next(ctx: Context) -> CycleResult:
    """Judge the turn that is due first and those that can be judged with it, and commit to the verdicts.

    Overdue turns are left to other validators. A turn whose file, policy or commitment fails is released, and the
    others go on. Each failure is logged with its task, and after the pass the first one is raised.
    """
    orders = await or_stop(ctx.stop, ctx.turns.take_next(_count_together(ctx)))
    if orders is None:
        return CycleResult.IDLE
    if not orders:
        return CycleResult.RETRY
    left, failures = list(orders), list[Failure]()
    async for order, result in judge(ctx, orders):
        failure = await _try_commit(ctx, order, result) if isinstance(result, Judgement) else result
        if failure is not None:
            get_logger().warning(
                "turn released without a verdict", task=order.receipt.task, code=failure.code, message=failure.message
            )
            failures.append(failure)
        ctx.turns.close(order)
        left.remove(order)
    for order in left:
        ctx.turns.wait_again(order)
    if failures:
        raise failures[0]
    return CycleResult.DONE


def _count_together(ctx: Context) -> int:
    """Return the maximum number of turns whose drawn rows are replayed in one batch of the engine."""
    return max(1, ctx.config.batch // max(1, ctx.network.params.verification.audit_rows))


async def judge(ctx: Context, orders: Sequence[JudgeOrder]) -> AsyncIterator[tuple[JudgeOrder, Judgement | Failure]]:
    """Judge turns that can be judged together, or one whole replay. Yield each judgement as soon as it is known.

    The judgement is unknown if fetching or loading fails. A failure is yielded instead if the store or the relays do
    not respond, and ProtocolError("wrong_pool") for work of a different pool, which would look like fraud under this
    pool's rules.

    Not all turns are begun if the validator stops, if checks take too long, or if the files are large together. The
    others are not yielded. If the checks of one turn take too long, those before it are replayed and yielded first.
    """
    obstacle = await _find_obstacle(ctx, orders[0])
    if obstacle is not None:
        for order in orders:
            yield order, obstacle
        return
    begun: list[tuple[JudgeOrder, SubmissionClaim, asyncio.Future[PartialJudgement]]] = []
    last, size = orders[-1], 0  # it is held until the loop ends, unlike those that were yielded
    end = ctx.turns.get_seconds_left(last) - CHEAP_SHARE * ctx.turns.get_seconds_left(orders[0])
    for order in orders:
        seconds_left = ctx.turns.get_seconds_left(last) - end
        is_full = size >= ctx.network.params.max_submission_bytes
        if order is not orders[0] and (seconds_left <= 0 or is_full or ctx.stop.is_set()):
            break
        try:
            file = await fetch_file(ctx, order)
        except TransientError as error:
            yield order, error
            continue
        if isinstance(file, Judgement):
            yield order, file
            continue
        size += len(file)
        claim = build_claim(ctx, order, file)
        if order.full:
            yield order, await asyncio.to_thread(verdicts.judge, claim, ctx.tools, full=True)
            continue
        checking = asyncio.ensure_future(asyncio.to_thread(verdicts.check_cheaply, claim, ctx.tools))
        await asyncio.wait({checking}, timeout=seconds_left if begun else None)
        begun.append((order, claim, checking))
        if not checking.done():
            break
    slow = [turn for turn in begun if not turn[2].done()]
    for turns in (begun[: len(begun) - len(slow)], slow):
        checked = [(claim, await checking) for _, claim, checking in turns]
        judgements = await asyncio.to_thread(verdicts.replay_together, checked, ctx.tools)
        for (order, _, _), judgement in zip(turns, judgements, strict=True):
            yield order, judgement


async def _find_obstacle(ctx: Context, order: JudgeOrder) -> Judgement | Failure | None:
    """Load the policy of turns. Return what becomes of each of them if that fails, or if they are of another pool."""
    network, pool = ctx.network, order.receipt.pool
    if pool != network.pool:
        return ProtocolError(
            "wrong_pool", f"the submission belongs to pool {pool}, but this validator serves pool {network.pool}"
        )
    try:
        return await _or_unknown(order, load_policy(ctx, order))
    except TransientError as error:
        return error


async def fetch_file(ctx: Context, order: JudgeOrder) -> bytes | Judgement:
    """Return the file of a submission, or unknown if it cannot be fetched.

    Raises TransientError if the store does not respond.
    """
    size = ctx.network.params.max_submission_bytes + 1
    return await _or_unknown(order, ctx.network.coordinator.get_object(order.url, max_bytes=size))


async def _or_unknown(order: JudgeOrder, fetching: Awaitable[Fetched]) -> Fetched | Judgement:
    """Return what is fetched, or unknown if the submission cannot be judged without it."""
    try:
        return await fetching
    except ProtocolError as error:
        get_logger().warning(
            "submission cannot be checked", task=order.receipt.task, code=error.code, message=error.message
        )
        return Judgement.unknown(error=error.code)
    except verdicts.MACHINE_FAILURES as error:
        name = type(error).__name__
        get_logger().error("file or policy could not be loaded", task=order.receipt.task, error=f"{name}: {error}")
        return Judgement.unknown(error=name)


def build_claim(ctx: Context, order: JudgeOrder, file: bytes) -> SubmissionClaim:
    """Return what the checks are given of a turn."""
    return SubmissionClaim(
        receipt=order.receipt.to_message(),
        signature=order.signature,
        record_hash=order.record_hash,
        contract=order.contract,
        drawn=draw_rows(ctx, order),
        file=file,
        due=time.monotonic() + ctx.turns.get_seconds_left(order),
    )


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


async def _try_commit(ctx: Context, order: JudgeOrder, judgement: Judgement) -> Failure | None:
    """Commit to a verdict, or return why that failed."""
    try:
        await commit(ctx, order, judgement)
    except (TransientError, ProtocolError) as error:
        return error
    return None


async def commit(ctx: Context, order: JudgeOrder, judgement: Judgement) -> None:
    """Sign the verdict, store it with its evidence, and send only the commitment to the coordinator."""
    network = ctx.network
    bundle = build_bundle(judgement, order, ctx.venue, rows=draw_rows(ctx, order))
    verdict = verdicts.build_verdict(
        judgement,
        order.receipt.to_message(),
        is_whole=order.full,
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
    ctx.verdicts.add(verdict, order.receipt.to_message())
    digest = eip712.compute_digest(verdict, network.receipt_domain)
    await network.coordinator.commit_verdict(order.judgement, messages.compute_commitment(digest, salt))
    get_logger().info(
        "submission judged",
        task=order.receipt.task,
        decision=judgement.decision.name.lower(),
        reason=judgement.reason.name.lower(),
        **judgement.details,
    )


async def reveal_all(ctx: Context, judgements: Sequence[int]) -> CycleResult:
    """Reveal committed verdicts, all of which are sent at the same time.

    If this validator lost a verdict, the turn lapses and another validator judges. After all were tried, the first
    failure is raised; a verdict that was not revealed is ordered again.
    """
    results = await asyncio.gather(*(reveal(ctx, judgement) for judgement in judgements), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return CycleResult.DONE if all(results) else CycleResult.RETRY  # A lost verdict is ordered again until it lapses.


async def reveal(ctx: Context, judgement: int) -> bool:
    """Reveal a committed verdict. Return False if this validator lost it."""
    request = ctx.pending.find(judgement)
    if request is None:
        get_logger().warning("verdict to reveal not found", judgement=judgement)
        return False
    await ctx.network.coordinator.reveal_verdict(request)
    ctx.pending.remove(judgement)
    return True
