"""Routes of the operator: pause new tasks and assign them again, and pardon a contributor."""

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
    """Pause new tasks, or assign them again. Work that is leased, submitted or accepted goes on in any case.

    Raises ProtocolError("pool_ended") if the pool has ended.
    """
    is_new = await ctx.database.run(
        lambda rows: pausing.set_paused(rows, by=PausedBy.OPERATOR, is_paused=body.is_paused, now=ctx.clock()),
        name="set_paused",
    )
    if is_new:
        get_logger().warning("new tasks are paused" if body.is_paused else "new tasks go on", operator=operator)
        ctx.jobs.trigger("assign_tasks")


@router.post("/pardons", responses=name_refusals(404))
async def pardon(ctx: Ctx, operator: Operator, body: PardonRequest) -> PardonResponse:
    """Take back what suspends a contributor or one of its nodes: strikes, faults, running sums or several of them.

    Raises ProtocolError "no_contributor" if no node of the contributor was ever registered.
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
