"""Routes of validators: turns, commitments, revealed verdicts, and the cases that may be brought to the court."""

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from coordinator.api.auth import CallingValidator, Ctx, Validator, ValidatorCaller
from coordinator.api.long_poll import LongPolls, wait_for
from coordinator.api.objects import sign_download
from coordinator.context import Context
from coordinator.db.models import SubmissionRow
from coordinator.domain import judging
from coordinator.domain.submissions import to_receipt
from covey.errors import ProtocolError
from covey.protocol import canonical, eip712, messages
from covey.protocol.api.common import MAX_EVIDENCE_BYTES, ReceiptBody, VerdictBody
from covey.protocol.api.validator import (
    CommitRequest,
    HardCase,
    HardCases,
    JudgeOrder,
    RevealOrder,
    RevealRequest,
    TurnRequest,
    ValidationOrder,
)
from covey.protocol.evidence import get_live_groups, require_object
from covey.protocol.ids import Address, Hash
from covey.protocol.object_keys import build_evidence_key
from covey.protocol.verdict import Decision

SEEN_SECONDS = 10.0
"""A validator's sign of life is written at most this often."""
router = APIRouter(prefix="/v1", tags=["validator"])


@router.post("/validations/claim")
async def claim_validation(
    ctx: Ctx, request: Request, caller: CallingValidator, body: TurnRequest
) -> ValidationOrder | None:
    """Long-poll for a submission to judge, or for the word to reveal; a newer poll of the validator ends this one."""
    polls: LongPolls = request.app.state.polls
    poll = polls.open(caller.validator)
    await run_in_threadpool(note_validator, ctx, caller.validator)
    return await wait_for(
        ctx, body.wait_seconds, lambda: take_turn(ctx, caller, body), is_open=lambda: polls.is_open(poll)
    )


@router.post("/validations/commit", status_code=204)
def commit(ctx: Ctx, validator: Validator, body: CommitRequest) -> None:
    """Commit to a verdict."""
    with ctx.database.write() as repository:
        judging.record_commit(
            repository,
            ctx.params,
            validator=validator,
            judgement=body.judgement,
            commitment=body.commitment,
            now=ctx.clock(),
        )


@router.post("/validations/reveal", status_code=204)
def reveal(ctx: Ctx, validator: Validator, body: RevealRequest) -> None:
    """Verify a revealed verdict and its signature, keep its evidence, record it."""
    verdict = body.verdict.to_message()
    if verdict.validator != validator or verdict.pool != ctx.config.pool:
        raise ProtocolError("bad_verdict", "the verdict names another validator or pool")
    eip712.require_signer(verdict, ctx.receipt_domain, body.signature, validator)
    digest = eip712.compute_digest(verdict, ctx.receipt_domain)
    evidence, live_groups = _require_evidence(ctx, verdict, body)
    with ctx.database.write() as repository:
        judging.record_reveal(
            repository,
            ctx.params,
            judgement=body.judgement,
            verdict=verdict,
            digest=digest,
            salt=body.salt,
            signature=body.signature,
            live_groups=live_groups,
            now=ctx.clock(),
        )
        ctx.store.put_named_by_content(build_evidence_key(ctx.config.pool, verdict.evidence_hash), evidence)
    ctx.kicker.kick("tally")


@router.post("/cases")
def list_hard_cases(ctx: Ctx, _: Validator) -> HardCases:
    """Hard rejections with the signatures that open a case on chain."""
    with ctx.database.read() as repository:
        rows = repository.list_hard_rejections()
        return HardCases(cases=tuple(_build_case(ctx, row) for row in rows))


def note_validator(ctx: Context, validator: Address) -> None:
    """Record that a validator asks for work, unless that was recorded in the last seconds."""
    now = ctx.clock()
    with ctx.database.read() as repository:
        row = repository.get_validator(validator)
        if row is not None and row.seen_at > now - SEEN_SECONDS:
            return
    with ctx.database.write() as repository:
        repository.require_validator(validator).seen_at = now


def take_turn(ctx: Context, caller: ValidatorCaller, body: TurnRequest) -> ValidationOrder | None:
    """The next turn or reveal for a validator."""
    with ctx.database.read() as repository:
        if not repository.list_open_judgements():
            return None
    with ctx.database.write() as repository:
        found = judging.claim_turn(
            repository,
            ctx.params,
            validator=caller.validator,
            validators=caller.validators,
            holding=body.holding,
            free_turns=body.free_turns,
            now=ctx.clock(),
        )
        if found is None:
            return None
        kind, judgement = found
        if kind == "reveal":
            return ValidationOrder(order=RevealOrder(judgement=judgement.id))
        row = repository.get_submission(judgement.receipt_hash)
        step = repository.get_step(row.policy_version) if row else None
        if row is None or step is None:
            return None
        return ValidationOrder(
            order=JudgeOrder(
                judgement=judgement.id,
                receipt=ReceiptBody.of(to_receipt(row, ctx.config.pool)),
                signature=row.signature,
                url=sign_download(ctx, row),
                record_hash=Hash(step.record_hash),
                full=judgement.full,
                seconds_left=max(0.0, judgement.deadline - ctx.clock()),
            )
        )


def _require_evidence(ctx: Context, verdict: messages.Verdict, body: RevealRequest) -> tuple[bytes, int | None]:
    """The bytes to keep, and the one thing in them that is acted upon.  All that they say is the validator's word."""
    evidence = body.evidence.encode()
    if len(evidence) > MAX_EVIDENCE_BYTES:
        raise ProtocolError("bad_verdict", f"evidence has at most {MAX_EVIDENCE_BYTES} bytes")
    if canonical.sha256(evidence) != verdict.evidence_hash:
        raise ProtocolError("bad_verdict", "the evidence does not have the hash that the verdict names")
    return evidence, get_live_groups(require_object(evidence), groups=ctx.params.groups_per_task)


def _build_case(ctx: Context, row: SubmissionRow) -> HardCase:
    agreeing = [
        j
        for j in row.judgements
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
