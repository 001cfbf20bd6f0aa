"""Routes of the trainer: the batch of a step, and reports on whether the run can learn."""

from fastapi import APIRouter

from coordinator.api.auth import State, Trainer
from coordinator.api.documented_answers import SIGNED
from coordinator.api.file_links import sign_download
from coordinator.api.process.long_poll import wait_for
from coordinator.context import Context
from coordinator.db.repository import Repository
from coordinator.domain import pausing, steps
from covey.protocol.api.trainer import BatchItem, BatchOrder, BatchRequest, LearningReport
from covey.protocol.ids import Address, Hash, Step, TaskId
from covey.protocol.status import StepState
from covey.runtime.log import get_logger

router = APIRouter(prefix="/v1", tags=["trainer"], responses=SIGNED)


@router.post("/batches/claim")
async def claim_batch(state: State, _: Trainer, body: BatchRequest) -> BatchOrder | None:
    """Long-poll for the batch of a step. Opens the step if it is the next one, because the trainer has its policy."""
    ctx = state.ctx

    async def open_and_find() -> BatchOrder | None:
        if await ctx.database.query(lambda rows: steps.is_next(rows, body.step)):
            await ctx.database.run(lambda rows: steps.open_ahead(rows, ctx.params, number=body.step), name="open_ahead")
        return await ctx.database.query(lambda rows: find_batch(ctx, rows, body.step))

    return await wait_for(state.changes.signal, body.wait_seconds, open_and_find)


@router.post("/learning", status_code=204)
async def report_learning(state: State, _: Trainer, body: LearningReport) -> None:
    """Record the newest step's metrics and the signs that the run cannot learn, and pause new tasks if requested."""
    ctx = state.ctx

    def record(rows: Repository) -> bool:
        now = ctx.clock()
        if body.point is not None and body.steps:
            rows.record_point(body.steps - 1, body.point, now=now, task_types=body.task_types)
        return pausing.record_report(rows, steps=body.steps, signs=body.signs, pause=body.pause, now=now)

    is_new = await ctx.database.run(record, name="record_report")
    if is_new:
        get_logger().error("new tasks are paused, because the run cannot learn", steps=body.steps, signs=body.signs)


def find_batch(ctx: Context, repository: Repository, step: int) -> BatchOrder | None:
    """Return the batch of a step, or None while it is not ready."""
    row = repository.get_step(step)
    if row is None or row.state is StepState.OPEN:
        return None
    records = {s.number: Hash(s.record_hash) for s in repository.list_steps() if s.record_hash}
    items = tuple(
        BatchItem(
            receipt_hash=Hash(s.receipt_hash),
            task=TaskId(s.task),
            node=Address(s.node),
            policy_version=Step(s.policy_version),
            record_hash=records[s.policy_version],
            work_key=Hash(s.work_key),
            url=sign_download(ctx, s),
            replayed=s.is_replayed,
        )
        for s in repository.list_batch(step)
    )
    return BatchOrder(step=Step(step), items=items)
