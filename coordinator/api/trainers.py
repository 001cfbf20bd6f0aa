"""The route of the trainer: the batch of a step."""

from fastapi import APIRouter

from coordinator.api.auth import Ctx, Trainer
from coordinator.api.long_poll import wait_for
from coordinator.api.objects import sign_download
from coordinator.context import Context
from coordinator.domain import steps
from covey.protocol.api.trainer import BatchItem, BatchOrder, BatchRequest
from covey.protocol.ids import Address, Hash, Step, TaskId
from covey.protocol.status import StepState

router = APIRouter(prefix="/v1", tags=["trainer"])


@router.post("/batches/claim")
async def claim_batch(ctx: Ctx, _: Trainer, body: BatchRequest) -> BatchOrder | None:
    """Long-poll for the batch of a step.  The trainer that asks has the step's policy, so the step may open."""
    return await wait_for(ctx, body.wait_seconds, lambda: open_and_find(ctx, body.step))


def open_and_find(ctx: Context, step: int) -> BatchOrder | None:
    """Open the step if it is the next, then look for its batch."""
    open_step_ahead(ctx, step)
    return find_batch(ctx, step)


def open_step_ahead(ctx: Context, step: int) -> None:
    """Open the step if it is the next one, be its policy on chain or not yet."""
    with ctx.database.read() as repository:
        is_next = steps.is_next(repository, step)
    if is_next:
        with ctx.database.write() as repository:
            steps.open_ahead(repository, ctx.params, number=step)


def find_batch(ctx: Context, step: int) -> BatchOrder | None:
    """The batch of a step, once it is ready."""
    with ctx.database.read() as repository:
        row = repository.get_step(step)
        if row is None or row.state is StepState.OPEN:
            return None
        manifests = {s.number: Hash(s.record_hash) for s in repository.list_steps() if s.record_hash}
        items = tuple(
            BatchItem(
                receipt_hash=Hash(s.receipt_hash),
                task=TaskId(s.task),
                node=Address(s.node),
                policy_version=Step(s.policy_version),
                record_hash=manifests[s.policy_version],
                work_key=Hash(s.work_key),
                url=sign_download(ctx, s),
                replayed=s.is_replayed,
            )
            for s in repository.list_batch(step)
        )
    return BatchOrder(step=Step(step), items=items)
