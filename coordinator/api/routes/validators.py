"""Routes of validators: turns, commitments, revealed verdicts, cases for the court, and epochs to sign."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request

from coordinator.api.auth import Ctx, State, Validator
from coordinator.api.documented_answers import SIGNED, name_refusals
from coordinator.api.process.long_poll import call_when_gone, wait_for
from coordinator.context import Context
from coordinator.db.models import SubmissionRow
from coordinator.db.repository import Repository
from coordinator.domain import attesting, exact_lane, turns
from coordinator.domain.submissions import to_receipt
from coordinator.domain.turns import Commitment, Reveal, TurnQuery
from covey.errors import ProtocolError
from covey.protocol import canonical, eip712, messages
from covey.protocol.api.common import MAX_EVIDENCE_BYTES, ReceiptBody, VerdictBody
from covey.protocol.api.validator import (
    AttestRequest,
    AwaitingEpoch,
    CommitRequest,
    HardCase,
    HardCases,
    JudgeOrder,
    RevealOrder,
    RevealRequest,
    SignedVerdicts,
    TurnRequest,
    ValidationOrders,
    VerdictsRequest,
)
from covey.protocol.eip712 import Domain
from covey.protocol.evidence import get_live_groups, is_in_drawn_rows, require_object
from covey.protocol.ids import Address, Hash
from covey.protocol.object_keys import build_evidence_key
from covey.protocol.running_sums import get_sums
from covey.protocol.verdict import Decision
from covey.runtime.log import get_logger

router = APIRouter(prefix="/v1", tags=["validator"], responses=SIGNED)


@router.post("/validations/claim")
async def claim_validations(
    request: Request, state: State, validator: Validator, body: TurnRequest
) -> ValidationOrders:
    """Long-poll for submissions to judge and verdicts to reveal. A newer poll of the same validator ends this one."""
    ctx, polls = state.ctx, state.polls
    poll = polls.open(validator)
    has_left = False

    def leave() -> None:
        nonlocal has_left
        has_left = True

    query = TurnQuery(
        validator=validator,
        validators=ctx.chain.list_active(),
        holding=body.holding,
        free_turns=body.free_turns,
        free_replays=body.free_replays,
        contract=body.contract,
    )

    async def take() -> Sequence[JudgeOrder | RevealOrder] | None:
        if not await ctx.database.query(lambda rows: turns.has_order(rows, ctx.params, query, now=ctx.clock())):
            return None
        return await state.turn_intake.take(query) or None  # Another validator may have been faster.

    if polls.is_due(validator, body.contract, ctx.clock()):
        now = ctx.clock()
        await ctx.database.run(
            lambda rows: exact_lane.note_asking(rows, validator, body.contract, now=now), name="note_asking"
        )
        polls.note(validator, body.contract, now)
    with call_when_gone(request.receive, leave):
        orders = await wait_for(
            state.turns,
            body.wait_seconds,
            take,
            is_open=lambda: polls.is_open(poll) and not has_left and not ctx.stop.is_set(),
        )
    return ValidationOrders(orders=tuple(orders or ()))


@router.post("/validations/commit", status_code=204, responses=name_refusals(409))
async def commit(state: State, validator: Validator, body: CommitRequest) -> None:
    """Commit to a verdict. Raises the errors of `turns.record_commits`."""
    await state.turn_intake.commit(Commitment(validator, body.judgement, body.commitment))
    get_logger().debug("verdict was committed", judgement=body.judgement, validator=validator)


@router.post("/validations/reveal", status_code=204, responses=name_refusals(400, 409))
async def reveal(state: State, validator: Validator, body: RevealRequest) -> None:
    """Verify a revealed verdict and its signature, store its evidence, and record it.

    Raises ProtocolError("bad_verdict") or ProtocolError("bad_signature"), and the errors of `turns.check_reveals`.
    """
    ctx, verdict = state.ctx, body.verdict.to_message()
    if verdict.validator != validator or verdict.pool != ctx.config.pool:
        raise ProtocolError("bad_verdict", "the verdict names another validator or pool")
    eip712.require_signer(verdict, ctx.receipt_domain, body.signature, validator)
    evidence, bundle = _require_evidence(verdict, body)
    shown = Reveal(
        judgement=body.judgement,
        verdict=verdict,
        digest=eip712.compute_digest(verdict, ctx.receipt_domain),
        salt=body.salt,
        signature=body.signature,
        live_groups=get_live_groups(bundle, groups=ctx.params.groups_per_task),
        is_in_drawn_rows=is_in_drawn_rows(bundle),
        sums=get_sums(bundle),
    )
    await state.turn_intake.check(shown)  # Otherwise evidence that is refused would fill the store.
    key = build_evidence_key(ctx.config.pool, verdict.evidence_hash)
    await ctx.store_executor.run(lambda: ctx.store.put_named_by_content(key, evidence))
    await state.turn_intake.reveal(shown)
    get_logger().debug(
        "verdict was revealed",
        judgement=body.judgement,
        validator=validator,
        outcome=verdict.outcome,
        receipt=verdict.receipt_hash,
    )
    ctx.jobs.trigger("dispatch_validation", receipts=[verdict.receipt_hash])


@router.post("/cases")
async def list_hard_cases(ctx: Ctx, _: Validator) -> HardCases:
    """List hard rejections with the verdicts and signatures that open a case on chain."""
    return await ctx.database.query(
        lambda rows: HardCases(cases=tuple(_build_case(ctx, row) for row in rows.list_hard_rejections()))
    )


@router.post("/epochs/awaiting")
async def find_awaiting_epoch(ctx: Ctx, validator: Validator) -> AwaitingEpoch | None:
    """Return the epoch whose header the validator is to sign. Null if there is none, or if it has signed it."""
    return await ctx.database.query(lambda rows: _find_unsigned(ctx, rows, validator))


@router.post("/epochs/attest", status_code=204, responses=name_refusals(409))
async def attest(ctx: Ctx, validator: Validator, body: AttestRequest) -> None:
    """Verify and store a signature over the header of the epoch that awaits signatures.

    Raises ProtocolError("bad_signature"), and the errors of `attesting.record_attestation`.
    """
    header = await ctx.database.query(lambda rows: attesting.find_awaiting(rows, ctx.ledger))
    if header is not None:
        domain = Domain(chain_id=ctx.ledger.chain_id, contract=ctx.ledger.address)
        eip712.require_signer(header, domain, body.signature, validator)
    epoch = await ctx.database.run(
        lambda rows: attesting.record_attestation(
            rows,
            ctx.ledger,
            signed=header,
            header_hash=Hash(body.header_hash),
            validator=validator,
            signature=body.signature,
        ),
        name="attest",
    )
    get_logger().info("a validator has signed an epoch", epoch=epoch, validator=validator)
    ctx.jobs.trigger("post_epoch", epoch=epoch)


@router.post("/epochs/verdicts")
async def list_verdicts(ctx: Ctx, _: Validator, body: VerdictsRequest) -> SignedVerdicts:
    """List the verdicts that validators have revealed on some receipts of epochs, with their signatures."""
    return await ctx.database.query(lambda rows: _collect_verdicts(rows, body.receipts))


def _find_unsigned(ctx: Context, rows: Repository, validator: Address) -> AwaitingEpoch | None:
    header = attesting.find_awaiting(rows, ctx.ledger)
    if header is None:
        return None
    header_hash = header.compute_hash()
    if validator in rows.find_attestations(header.epoch, header_hash):
        return None
    return AwaitingEpoch(epoch=header.epoch, header_hash=header_hash, data_hash=header.data_hash)


def _collect_verdicts(rows: Repository, receipts: Sequence[str]) -> SignedVerdicts:
    """Return the verdicts on receipts that are in an epoch. Those on other ones could be copied in a later turn."""
    submissions = (rows.get_submission(each) for each in receipts)
    found = [row for row in submissions if row is not None and row.epoch is not None]
    turns_of = [turn for row in found for turn in row.turns if turn.verdict is not None and turn.signature]
    return SignedVerdicts(
        verdicts=tuple(VerdictBody.of(turn.verdict) for turn in turns_of if turn.verdict is not None),
        signatures=tuple(turn.signature or "" for turn in turns_of),
    )


def _require_evidence(verdict: messages.Verdict, body: RevealRequest) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of the evidence, and their JSON values, whose content is not checked here."""
    evidence = body.evidence.encode()
    if len(evidence) > MAX_EVIDENCE_BYTES:
        raise ProtocolError("bad_verdict", f"evidence has at most {MAX_EVIDENCE_BYTES} bytes")
    if canonical.sha256(evidence) != verdict.evidence_hash:
        raise ProtocolError("bad_verdict", "the evidence does not have the hash that the verdict names")
    return evidence, require_object(evidence)


def _build_case(ctx: Context, row: SubmissionRow) -> HardCase:
    agreeing = [
        j
        for j in row.turns
        if j.verdict is not None
        and (j.verdict.outcome, j.verdict.reason) == (Decision.REJECT, row.reason)
        and j.signature
    ]
    return HardCase(
        receipt=ReceiptBody.of(to_receipt(row, ctx.config.pool)),
        signature=row.signature,
        verdicts=tuple(VerdictBody.of(j.verdict) for j in agreeing if j.verdict is not None),
        signatures=tuple(j.signature or "" for j in agreeing),
    )
