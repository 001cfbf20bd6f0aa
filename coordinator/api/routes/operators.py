"""Routes of the operator: pausing and resuming new tasks, and pardoning a contributor."""

from fastapi import APIRouter

from coordinator.api.auth import Ctx, Operator
from coordinator.api.documented_answers import SIGNED, name_refusals
from coordinator.domain import nodes, pausing
from coordinator.domain.pausing import PausedBy
from covey.protocol.api.operator import PardonRequest, PardonResponse, PauseRequest
from covey.runtime.log import get_logger

router = APIRouter(prefix="/v1", tags=["operator"], responses=SIGNED)


@router.post("/pause", status_code=204, responses=name_refusals(409))
async def set_paused(ctx: Ctx, operator: Operator, body: PauseRequest) -> None:
    """Pause or resume new tasks. Work that is leased, submitted or accepted continues in any case.

    Raises ProtocolError("pool_ended") if the pool has ended.
    """
    is_new = await ctx.database.run(
        lambda rows: pausing.set_paused(rows, by=PausedBy.OPERATOR, is_paused=body.is_paused, now=ctx.clock()),
        name="set_paused",
    )
    if is_new:
        get_logger().warning("new tasks are paused" if body.is_paused else "new tasks are resumed", operator=operator)
        ctx.jobs.trigger("assign_tasks")


@router.post("/pardons", responses=name_refusals(404))
async def pardon(ctx: Ctx, operator: Operator, body: PardonRequest) -> PardonResponse:
    """Revoke the suspensions of a contributor, or of one of its nodes, for strikes, faults or running sums.

    Raises ProtocolError("no_contributor") if the address is neither a node nor a contributor.
    """
    given = await ctx.database.run(lambda rows: nodes.pardon(rows, body.address), name="pardon")
    get_logger().warning(
        "the operator pardoned a contributor",
        contributor=given.contributor,
        strikes=given.strikes,
        nodes=given.nodes,
        operator=operator,
    )
    ctx.jobs.trigger("assign_tasks")
    return PardonResponse(contributor=given.contributor, strikes=given.strikes, nodes=tuple(given.nodes))
