"""The validator's two cycles: one takes turns and reveals committed verdicts, the other one judges and commits."""

import asyncio
import secrets
from collections.abc import Awaitable, Sequence
from typing import NamedTuple, TypeVar

from covey.errors import CoveyError, ProtocolError, TransientError
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

Fetched = TypeVar("Fetched")
CHEAP_SHARE = 0.25
"""Share of the time to the earliest deadline after which no further submission is checked in the same pass. A single
one may take half of its time for grading, and what remains is for the replay."""


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
    """Judge the oldest turn and those that can be judged with it, and commit to the verdicts.

    An overdue turn is left to other validators. A turn whose file or commitment fails is released, and the others go
    on. After them the first failure is raised.
    """
    orders = await or_stop(ctx.stop, ctx.turns.take_next(_count_together(ctx)))
    if orders is None:
        return CycleResult.IDLE
    left: Sequence[JudgeOrder] = ()
    try:
        due = [order for order in orders if _is_due(ctx, order)]
        if not due:
            return CycleResult.RETRY
        judged, left, errors = await judge(ctx, due)
        for order, judgement in judged:
            try:
                await commit(ctx, order, judgement)
            except (TransientError, ProtocolError) as error:
                errors.append(error)
    finally:
        for order in orders:
            if order in left:
                ctx.turns.wait_again(order)
            else:
                ctx.turns.close(order)
    if errors:
        raise errors[0]
    return CycleResult.DONE


def _count_together(ctx: Context) -> int:
    """Return the maximum number of turns whose drawn rows are replayed in one batch of the engine."""
    return max(1, ctx.config.batch // max(1, ctx.network.params.verification.audit_rows))


def _is_due(ctx: Context, order: JudgeOrder) -> bool:
    """Return whether a commitment still counts. Log a warning if it does not."""
    is_due = ctx.turns.get_seconds_left(order) > 0
    if not is_due:
        get_logger().warning(
            "turn skipped, too late to commit to a verdict", task=order.receipt.task, judgement=order.judgement
        )
    return is_due


class JudgedTurns(NamedTuple):
    """What became of turns that were judged together."""

    judged: list[tuple[JudgeOrder, Judgement]]
    left: list[JudgeOrder]
    """Turns that were not begun, because the others took too long or because the validator stops."""
    errors: list[CoveyError]
    """Failures that belong to one turn each. Nothing is said about these submissions."""


async def judge(ctx: Context, orders: Sequence[JudgeOrder]) -> JudgedTurns:
    """Fetch files and policy, and run the checks of turns that can be judged together, or of one whole replay.

    The judgement is unknown if fetching or loading fails. An error is ProtocolError("wrong_pool") for work of a
    different pool, which would look like fraud under this pool's rules, or TransientError if the store does not
    respond. Raises TransientError if the relays do not respond.
    """
    judged, claimed, errors = list[tuple[JudgeOrder, Judgement]](), list[tuple[JudgeOrder, bytes]](), list[CoveyError]()
    fetched = await asyncio.gather(*(fetch_file(ctx, order) for order in orders), return_exceptions=True)
    for order, file in zip(orders, fetched, strict=True):
        if isinstance(file, bytes):
            claimed.append((order, file))
        elif isinstance(file, Judgement):
            judged.append((order, file))
        elif isinstance(file, (TransientError, ProtocolError)):
            errors.append(file)
        else:
            raise file
    if not claimed:
        return JudgedTurns(judged, [], errors)
    unknown = await _or_unknown(claimed[0][0], load_policy(ctx, claimed[0][0]))
    if unknown is not None:
        return JudgedTurns([*judged, *((order, unknown) for order, _ in claimed)], [], errors)
    claims = [build_claim(ctx, order, file) for order, file in claimed]
    judgements = await _run_checks(ctx, [order for order, _ in claimed], claims)
    begun, left = claimed[: len(judgements)], claimed[len(judgements) :]
    judged += [(order, judgement) for (order, _), judgement in zip(begun, judgements, strict=True)]
    return JudgedTurns(judged, [order for order, _ in left], errors)


async def fetch_file(ctx: Context, order: JudgeOrder) -> bytes | Judgement:
    """Return the file of a submission, or unknown if it cannot be fetched.

    Raises ProtocolError("wrong_pool") for work of a different pool, and TransientError if the store does not respond.
    """
    network, pool = ctx.network, order.receipt.pool
    if pool != network.pool:
        raise ProtocolError(
            "wrong_pool", f"the submission belongs to pool {pool}, but this validator serves pool {network.pool}"
        )
    size = network.params.max_submission_bytes + 1
    return await _or_unknown(order, network.coordinator.get_object(order.url, max_bytes=size))


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
    )


async def _run_checks(
    ctx: Context, orders: Sequence[JudgeOrder], claims: Sequence[SubmissionClaim]
) -> Sequence[Judgement]:
    """Return the judgements of the turns that were begun."""
    earliest = min(orders, key=ctx.turns.get_seconds_left)
    seconds = ctx.turns.get_seconds_left(earliest)

    def may_go_on() -> bool:
        is_early = seconds - ctx.turns.get_seconds_left(earliest) < CHEAP_SHARE * seconds
        return is_early and not ctx.stop.is_set()

    if orders[0].full:
        return [await asyncio.to_thread(verdicts.judge, claim, ctx.tools, full=True) for claim in claims]
    judgements = await asyncio.to_thread(verdicts.judge_together, claims, ctx.tools, may_go_on=may_go_on)
    ctx.turns.note_seconds(seconds - ctx.turns.get_seconds_left(earliest), len(judgements))
    return judgements


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
