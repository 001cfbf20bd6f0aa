"""The route of the operator: pardons."""

from fastapi import APIRouter

from coordinator.api.auth import Ctx, Operator
from coordinator.api.documented_answers import SIGNED, name_refusals
from coordinator.domain import nodes
from covey.protocol.api.operator import PardonRequest, PardonResponse
from covey.runtime.log import get_logger

router = APIRouter(prefix="/v1", tags=["operator"], responses=SIGNED)


@router.post("/pardons", responses=name_refusals(404))
async def pardon(ctx: Ctx, operator: Operator, body: PardonRequest) -> PardonResponse:
    """Take back all strikes of a contributor, and serve the nodes that were suspended for them.

    Raises ProtocolError "no_contributor" if no node of the contributor was ever registered.
    """
    given = await ctx.database.run(lambda rows: nodes.pardon(rows, body.address))
    get_logger().warning(
        "the operator pardoned a contributor",
        contributor=given.contributor,
        strikes=given.strikes,
        nodes=given.nodes,
        operator=operator,
    )
    ctx.kicker.kick("assign_tasks")
    return PardonResponse(contributor=given.contributor, strikes=given.strikes, nodes=tuple(given.nodes))
