"""Routes that need no signature: hashes, states and sums, never a completion before its epoch closes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query

from coordinator.api.auth import Ctx
from coordinator.context import Context
from coordinator.db.models import EpochRow, JudgementRow, StepRow, SubmissionRow, TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import canary_scores, scheduling, settlement, submissions
from coordinator.domain.scheduling import Groups
from coordinator.domain.steps import get_oldest_version
from covey.errors import ProtocolError
from covey.protocol.api.common import AddressText, ReceiptBody, VerdictBody
from covey.protocol.api.public import (
    EpochView,
    NodeView,
    PoolView,
    Requirements,
    RewardView,
    StatusView,
    StepView,
    SubmissionDetail,
    SubmissionView,
)
from covey.protocol.ids import Address, Hash, Step, TaskId
from covey.protocol.status import StepState, SubmissionState
from covey.protocol.verdict import Decision, Reason

router = APIRouter(prefix="/v1", tags=["public"])


@router.get("/pool")
def get_pool(ctx: Ctx) -> PoolView:
    """Parameters and contracts; the chain holds the parameters' hash."""
    deployment, params = ctx.contracts.deployment, ctx.params
    return PoolView(
        pool=ctx.ledger.pool,
        params=params.to_text(),
        params_hash=params.compute_hash(),
        terms=asdict(ctx.terms),
        requirements=Requirements(
            engine=params.verification.worker_engine,
            compute_dtype=params.model.compute_dtype,
            hardware=params.verification.hardware,
            build=params.verification.build,
            max_tokens=params.model.longest,
        ),
        operator=ctx.operator.address,
        chain_id=deployment.chain_id,
        contracts=deployment.get_contracts(),
        token=deployment.token,
        start_block=deployment.start_block,
        relays=ctx.config.relays,
    )


@router.get("/status")
def get_status(ctx: Ctx) -> StatusView:
    """The network at a glance."""
    with ctx.database.read() as repository:
        steps, latest = repository.list_steps(), repository.get_latest_step()
        blocks = repository.list_blocks()
        return StatusView(
            pool=ctx.ledger.pool,
            time=int(ctx.clock()),
            block=blocks[-1][0] if blocks else 0,
            ended=bool(repository.get_fact("ended")),
            settled=_is_settled(repository),
            step=latest.number if latest else -1,
            steps=tuple(_describe_steps(ctx, repository, steps)),
            tasks=repository.count_by_state(TaskRow),
            submissions=repository.count_by_state(SubmissionRow),
            reasons={Reason(reason).name.lower(): n for reason, n in repository.count_by_reason().items()},
            nodes={
                Address(n.address): NodeView(
                    contributor=Address(n.contributor), suspended=n.barred, accepted=n.accepted
                )
                for n in repository.list_nodes()
            },
            validators=dict(canary_scores.count_scores(repository)),
            epochs=tuple(_describe_epoch(e) for e in repository.list_epochs()),
        )


@router.get("/submissions")
def list_submissions(
    ctx: Ctx,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    contributor: AddressText | None = None,
    node: AddressText | None = None,
    state: SubmissionState | None = None,
) -> list[SubmissionView]:
    """The newest submissions, without their content; of one contributor, one node or in one state where named."""
    with ctx.database.read() as repository:
        rows = repository.list_recent_submissions(limit, contributor=contributor, node=node, state=state)
        return [_describe_submission(ctx, row) for row in rows]


@router.get("/submissions/{receipt_hash}")
def get_submission(ctx: Ctx, receipt_hash: Annotated[str, Path(pattern="^0x[0-9a-f]{8,64}$")]) -> SubmissionDetail:
    """One submission by its receipt's hash or at least 8 digits of it; with receipt and verdicts once decided.

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
        judgements = _list_public(row)
        return SubmissionDetail(
            **_describe_submission(ctx, row).model_dump(),
            receipt=ReceiptBody.of(submissions.to_receipt(row, ctx.config.pool)) if _is_decided(row) else None,
            verdicts=tuple(VerdictBody.of(j.verdict) for j in judgements if j.verdict is not None),
            signatures=tuple(j.signature or "" for j in judgements),
        )


@router.get("/rewards/{contributor}")
def get_reward(ctx: Ctx, contributor: AddressText, epoch: Annotated[int, Query(ge=0, lt=1 << 63)]) -> RewardView:
    """What a contributor had earned by the end of an epoch, with the proof."""
    with ctx.database.read() as repository:
        row = repository.get_epoch(epoch)
        if row is None or row.posted_block is None:
            raise ProtocolError("unknown_epoch", f"epoch {epoch} is not posted", status=404)
        if row.disabled:
            raise ProtocolError("epoch_disabled", f"epoch {epoch} was disabled; claim against a later one", status=409)
        cumulative, proof = settlement.get_reward(repository, ctx.ledger, contributor=contributor, epoch=epoch)
    return RewardView(epoch=epoch, contributor=contributor, cumulative=cumulative, proof=tuple(proof))


def _describe_steps(ctx: Context, repository: Repository, steps: Sequence[StepRow]) -> Iterator[StepView]:
    accepted = _count_accepted_groups(repository)
    for row in steps:
        groups = Groups(row.packed_groups, row.packed_live_groups)
        is_open = row.state is StepState.OPEN
        if is_open:
            oldest = get_oldest_version(repository, ctx.params)
            groups = Groups(*repository.sum_unpacked(oldest_version=oldest))
        yield StepView(
            step=Step(row.number),
            state=row.state,
            record_hash=Hash(row.record_hash) if row.record_hash else None,
            groups_accepted=accepted[row.number],
            groups_sampled=groups.sampled,
            groups_live=groups.live,
            is_capped=not is_open and scheduling.is_capped(ctx.params, groups),
        )


def _describe_epoch(row: EpochRow) -> EpochView:
    return EpochView(
        epoch=row.number,
        work_root=Hash(row.work_root),
        reward_root=Hash(row.reward_root),
        leaf_count=row.leaf_count,
        units=row.units,
        data_hash=Hash(row.data_hash),
        previous_hash=Hash(row.previous_hash),
        posted=row.posted_block is not None,
        disabled=row.disabled,
        header_hash=None if row.header_hash is None else Hash(row.header_hash),
        final_at=row.final_at,
        reward=None if row.reward is None else int(row.reward),
        cumulative=None if row.cumulative is None else int(row.cumulative),
    )


def _count_accepted_groups(repository: Repository) -> Counter[int]:
    counts: Counter[int] = Counter()
    for row in repository.list_submissions(SubmissionState.ACCEPTED, SubmissionState.SETTLED):
        if row.decision is Decision.ACCEPT:
            counts[row.policy_version] += row.groups
    return counts


def _is_settled(repository: Repository) -> bool:
    waiting = repository.list_submissions(SubmissionState.SUBMITTED)
    open_epochs = [e for e in repository.list_epochs() if e.posted_block is None]
    return bool(repository.get_fact("ended")) and not (waiting or repository.list_unsettled() or open_epochs)


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
        evidence_hashes=tuple(j.verdict.evidence_hash for j in _list_public(row) if j.verdict),
    )


def _is_decided(row: SubmissionRow) -> bool:
    return row.state is not SubmissionState.SUBMITTED


def _list_public(row: SubmissionRow) -> list[JudgementRow]:
    """Revealed verdicts, and none before all is decided: a validator could follow them."""
    return [j for j in row.judgements if j.verdict is not None and j.signature] if _is_decided(row) else []
