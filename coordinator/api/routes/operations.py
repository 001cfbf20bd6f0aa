"""Routes for operating the coordinator: liveness and readiness.

They tell no secrets. A proxy in front of the coordinator may still keep them from the public.
"""

import asyncio

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from coordinator.api.auth import Ctx
from coordinator.context import Context
from covey.errors import TransientError
from covey.protocol.api.public import HealthView, ReadinessView

PATIENCE_SECONDS = 2.0
"""Maximum time in seconds that the database may take to answer while the coordinator counts as ready."""
router = APIRouter(tags=["operations"])


@router.get("/", include_in_schema=False)
async def open_pages(ctx: Ctx) -> RedirectResponse:
    """Lead to the pages for people, which another process serves."""
    return RedirectResponse(f"{ctx.config.pages_base_url}/")


@router.get("/health")
async def get_health(ctx: Ctx) -> HealthView:
    """Check whether this process responds. Nothing else is checked, so a failure means that it should be restarted."""
    return HealthView(pool=ctx.ledger.pool)


@router.get("/ready", responses={503: {"model": ReadinessView}})
async def get_readiness(ctx: Ctx, response: Response) -> ReadinessView:
    """Check whether requests can be served. The status is 200, or 503 with the reasons, for a load balancer."""
    reasons = await list_obstacles(ctx)
    response.status_code = 503 if reasons else 200
    return ReadinessView(is_ready=not reasons, reasons=tuple(reasons))


async def list_obstacles(ctx: Context) -> list[str]:
    """Return the reasons why requests cannot be served, as one sentence each. Empty if they can."""
    reasons = []
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ctx.database.query(lambda rows: rows.list_blocks())
    except (TransientError, TimeoutError) as error:
        reasons.append(f"The database does not answer within {PATIENCE_SECONDS:g} s ({type(error).__name__}).")
    if ctx.chain.poll_age_s is None:  # Later on, requests are served without it.
        reasons.append("The chain's node has not answered since this process started.")
    if ctx.stop.is_set():
        reasons.append("This process is shutting down.")
    return reasons
