"""Public routes: hashes, states and sums. They never return a completion before its epoch closes."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import TypeAdapter

from coordinator.api.auth import Ctx, State
from coordinator.api.documented_answers import name_refusals
from coordinator.api.process.status_page import stamp_status
from coordinator.context import Context
from coordinator.db.models import SubmissionRow, TurnRow
from coordinator.domain import canary_scores, node_details, submissions
from covey.errors import ProtocolError
from covey.protocol.api.common import AddressText, ReceiptBody, VerdictBody
from covey.protocol.api.public import (
    MAX_ROWS,
    NodeDetail,
    PoolView,
    Requirements,
    RewardView,
    StatusView,
    SubmissionDetail,
    SubmissionView,
)
from covey.protocol.ids import Address, Hash, Step, TaskId
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Reason

router = APIRouter(prefix="/v1", tags=["public"])
_VIEWS = TypeAdapter(list[SubmissionView])


@router.get("/pool")
def get_pool(ctx: Ctx) -> PoolView:
    """Get the pool's parameters and contracts. The hash of the parameters is on chain."""
    deployment, params = ctx.contracts.deployment, ctx.params
    return PoolView(
        pool=ctx.ledger.pool,
        params=ctx.params_text,
        params_hash=ctx.terms.params_hash,
        terms=asdict(ctx.terms),
        requirements=Requirements(
            engine=params.verification.worker_engine,
            compute_dtype=params.model.compute_dtype,
            hardware=params.verification.hardware,
            execution_contracts={
                digest: each.describe() for digest, each in params.verification.list_digests().items()
            },
            max_tokens=params.model.longest,
        ),
        operator=ctx.operator,
        signer=ctx.signer.address,
        chain_id=deployment.chain_id,
        contracts=deployment.get_contracts(),
        token=deployment.token,
        start_block=deployment.start_block,
        start_hash=deployment.start_hash,
        relays=ctx.config.relays,
    )


@router.get("/status", response_model=StatusView)
async def get_status(state: State) -> Response:
    """Get an overview of the pool. That of a large pool may be some seconds old (see `CachedPage`)."""
    page = stamp_status(await state.status.read(), state.ctx.clock())
    return Response(page, media_type="application/json")


@router.get("/nodes/{node}", responses=name_refusals(404))
async def get_node(ctx: Ctx, node: AddressText) -> NodeDetail:
    """Get one node, with a sentence that explains why it gets no task. Raises ProtocolError("no_node")."""
    return await ctx.database.query(
        lambda rows: node_details.describe(
            rows, ctx.params, Address(node), rule=ctx.stake_rule, validators=ctx.chain.validators, now=ctx.clock()
        )
    )


@router.get("/submissions", response_model=list[SubmissionView])
def list_submissions(
    ctx: Ctx,
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
    contributor: AddressText | None = None,
    node: AddressText | None = None,
    state: SubmissionState | None = None,
    before: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
) -> Response:
    """List the newest submissions without their content, optionally of one contributor, one node or one state.

    With `before`, those of earlier tasks than this one. The task of the last one asks for the next page.
    """
    with ctx.database.read() as repository:
        rows = repository.list_recent_submissions(limit, before=before, contributor=contributor, node=node, state=state)
        views = [_describe_submission(ctx, row) for row in rows]
    return Response(_VIEWS.dump_json(views), media_type="application/json")  # A list of models is validated twice.


@router.get("/submissions/{receipt_hash}", responses=name_refusals(404, 409))
def get_submission(ctx: Ctx, receipt_hash: Annotated[str, Path(pattern="^0x[0-9a-f]{8,64}$")]) -> SubmissionDetail:
    """Get one submission by its receipt hash or the first digits of it, at least 8. Verdicts follow the decision.

    Raises ProtocolError "unknown_submission", or "ambiguous_hash" where several receipt hashes begin so.
    """
    with ctx.database.read() as repository:
        rows = repository.list_submissions_like(receipt_hash)
        if not rows:
            raise ProtocolError(
                "unknown_submission", f"no submission's receipt hash begins with {receipt_hash}", status=404
            )
        if len(rows) > 1:
            raise ProtocolError("ambiguous_hash", f"several receipt hashes begin with {receipt_hash}", status=409)
        (row,) = rows
        turns = _list_public(row)
        return SubmissionDetail(
            **_describe_submission(ctx, row).model_dump(),
            receipt=ReceiptBody.of(submissions.to_receipt(row, ctx.config.pool)) if _is_decided(row) else None,
            verdicts=tuple(VerdictBody.of(j.verdict) for j in turns if j.verdict is not None),
            signatures=tuple(j.signature or "" for j in turns),
        )


@router.get("/rewards/{contributor}", responses=name_refusals(404, 409))
async def get_reward(
    state: State, contributor: AddressText, epoch: Annotated[int, Query(ge=0, lt=1 << 63)]
) -> RewardView:
    """Get a contributor's total earnings by the end of an epoch, with their proof."""
    cumulative, proof = await state.reward_proofs.find(epoch, contributor)
    return RewardView(epoch=epoch, contributor=contributor, cumulative=cumulative, proof=tuple(proof))


def _describe_submission(ctx: Context, row: SubmissionRow) -> SubmissionView:
    commitment, salt, kind = canary_scores.compute_public(ctx.canary_secret, row)
    return SubmissionView(
        receipt_hash=Hash(row.receipt_hash),
        task=TaskId(row.task),
        node=Address(row.node),
        contributor=Address(row.contributor),
        policy_version=Step(row.policy_version),
        state=row.state,
        reason=Reason(row.reason).name.lower(),
        units=row.units,
        epoch=row.epoch,
        commitment=commitment,
        salt=salt,
        kind=kind,
        consent=(row.consent or None) if kind else None,  # canaries of before had none
        evidence_hashes=tuple(j.verdict.evidence_hash for j in _list_public(row) if j.verdict),
    )


def _is_decided(row: SubmissionRow) -> bool:
    return row.state is not SubmissionState.SUBMITTED


def _list_public(row: SubmissionRow) -> list[TurnRow]:
    """Return the turns with revealed verdicts of a decided submission. Before, other validators could copy them."""
    return [j for j in row.turns if j.verdict is not None and j.signature] if _is_decided(row) else []
