"""The application of the pages: routes, errors, and limits for viewers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from coordinator.api.documented_answers import name_refusals
from coordinator.api.error_answers import add_error_handlers
from coordinator.api.process.meters import Meters
from coordinator.pages import data_routes, evidence_routes, html_routes
from coordinator.pages.context import PagesContext
from coordinator.pages.guard import Guard
from coordinator.pages.pages_state import build_state
from covey.reporting.page_assets import serve_assets
from covey.reporting.page_headers import PageHeaders
from covey.reporting.page_templates import ASSETS
from covey.runtime.open_origins import OpenOrigins

OWN_ASSETS = Path(__file__).parent / "assets"
"""Folder with the script that only a pool's pages have."""
DESCRIPTION = """Public data of a pool, from which its pages are made. Every route is read-only and needs no signature.

Lists have at most 200 items and name the key with which the next part is asked for. Amounts are in the token's
smallest unit, and times are Unix seconds. `/v1/events` sends a server-sent event after each change.

Scripts of any web site can read all routes below `/v1` (CORS: GET, any origin, no credentials).
"""


def build_routes() -> FastAPI:
    """Return an application with all routes, which is enough for its OpenAPI document."""
    app = FastAPI(title="Covey pages", version="1", description=DESCRIPTION, docs_url=None, redoc_url=None)
    app.include_router(data_routes.router, responses=name_refusals(404, 422, 429, 503))
    app.mount("/assets/pool", serve_assets(OWN_ASSETS))
    app.mount("/assets", serve_assets(ASSETS))
    for router in (html_routes.router, evidence_routes.router):
        app.include_router(router, include_in_schema=False)
    return app


def build_pages(ctx: PagesContext, meters: Meters | None = None) -> FastAPI:
    """Return the application of one pool's pages, whose requests `meters` count."""
    state = build_state(ctx)

    @asynccontextmanager
    async def run(_: FastAPI) -> AsyncIterator[None]:
        async with state.run():
            yield

    app = build_routes()
    app.router.lifespan_context = run
    app.state.pages = state
    add_error_handlers(app, ctx.clock)
    app.add_middleware(Guard, requests_per_s=ctx.config.requests_per_s, meters=meters or Meters())
    app.add_middleware(OpenOrigins)
    app.add_middleware(PageHeaders)
    return app
