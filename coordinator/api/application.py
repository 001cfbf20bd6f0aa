"""The coordinator's HTTP API: the application, its error responses, and the size limit of bodies.

Bodies are those of `covey.protocol.api`; every error is an ErrorBody with a stable code. The OpenAPI document is at
/openapi.json. There is no page /docs, because Swagger UI would load scripts from another server.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI

from coordinator.api.admission import Admission
from coordinator.api.documented_answers import EVERY_ROUTE, describe_signatures
from coordinator.api.error_answers import add_error_handlers
from coordinator.api.process.meters import Meters
from coordinator.api.routes import (
    objects,
    operations,
    operators,
    public_objects,
    trainers,
    uploads,
    validators,
    views,
    workers,
)
from coordinator.api.signed_routes import SignedRoutes
from coordinator.api.state import build_state
from coordinator.context import Context
from covey.runtime.open_origins import OpenOrigins

MAX_BODY_BYTES = 256 << 10
DESCRIPTION = """HTTP API of a pool's coordinator, which trains a language model on computers of strangers.

- Routes with the tag *public* need no signature. They show hashes, states and sums, which the chain confirms.
- Workers, validators, the trainer and the operator sign their requests with their wallets (RFC 9421 in the profile of
  ERC-8128). Three headers form a signature, and every nonce is used once.
- An answer other than 2xx is an `ErrorBody` with a stable code and the time of the coordinator's clock.
- Scripts of any web site can read the routes below `/v1` by GET, without credentials (CORS).
- The path `/` leads to pages for people, which `covey coordinator pages` serves together with lists as JSON.
"""
_MODULES = (workers, uploads, validators, trainers, views, operators, operations, public_objects, objects)
ROUTERS = tuple(module.router for module in _MODULES)
"""Routers of all routes, those with the most requests first."""


class _DocumentedApi(FastAPI):
    """An application whose OpenAPI document describes which requests are signed, and how."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            describe_signatures(super().openapi())
        return super().openapi()


def build_routes(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None) -> FastAPI:
    """Return an application with all routes and no state. It suffices to generate the OpenAPI document."""
    api = _DocumentedApi(
        title="Covey coordinator",
        version="1",
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    for router in ROUTERS:
        api.include_router(router, responses=EVERY_ROUTE)
    return api


def build_api(ctx: Context, meters: Meters) -> FastAPI:
    """Return the FastAPI application of one pool, whose requests `meters` count."""
    state = build_state(ctx, meters)

    @asynccontextmanager
    async def run(_: FastAPI) -> AsyncIterator[None]:
        async with state.run():
            yield

    api = build_routes(run)
    api.state.api = state
    add_error_handlers(api, ctx.clock)
    api.add_middleware(SignedRoutes, state=state, routers=ROUTERS)
    api.add_middleware(
        Admission,
        members=state.members,
        nonces=state.nonces,
        meters=meters,
        authority=ctx.config.signed_authority,
        chain_id=ctx.ledger.chain_id,
        max_body=MAX_BODY_BYTES,
        max_upload=ctx.params.max_submission_bytes,
        requests_per_s=ctx.config.requests_per_s,
        clock=ctx.clock,
    )
    api.add_middleware(OpenOrigins)
    return api
