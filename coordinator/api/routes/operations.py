"""Routes for those who operate the coordinator: whether it lives, and whether it can serve.

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
"""Maximum time in seconds that a look at the database may take for the coordinator to be ready."""
router = APIRouter(tags=["operations"])


@router.get("/", include_in_schema=False)
async def open_pages(ctx: Ctx) -> RedirectResponse:
    """Lead to the pages for people, which another process serves."""
    return RedirectResponse(f"{ctx.config.pages_base_url}/")


@router.get("/health")
async def get_health(ctx: Ctx) -> HealthView:
    """Whether this process answers. It looks at nothing else, so a failure means that it should be restarted."""
    return HealthView(pool=ctx.ledger.pool)


@router.get("/ready", responses={503: {"model": ReadinessView}})
async def get_readiness(ctx: Ctx, response: Response) -> ReadinessView:
    """Whether requests can be served: 200, or 503 with the reasons. A load balancer sends no requests until then."""
    reasons = await list_obstacles(ctx)
    response.status_code = 503 if reasons else 200
    return ReadinessView(is_ready=not reasons, reasons=tuple(reasons))


async def list_obstacles(ctx: Context) -> list[str]:
    """Return in one sentence each why requests cannot be served."""
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
