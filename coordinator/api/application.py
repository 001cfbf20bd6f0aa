"""The coordinator's HTTP API: the application, its errors and the limit of a body.

Bodies are those of `covey.protocol.api`; every error is an ErrorBody with a stable code. The OpenAPI document is at
/openapi.json. There is no page /docs, because Swagger UI would load scripts from another server.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from coordinator.api import (
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
from coordinator.api.admission import Admission
from coordinator.api.documented_answers import EVERY_ROUTE, describe_signatures
from coordinator.api.error_answers import describe_bad_body, describe_error
from coordinator.api.signed_routes import SignedRoutes
from coordinator.api.state import build_state
from coordinator.context import Context
from covey.errors import CoveyError
from covey.protocol.api.common import ErrorBody
from covey.runtime.log import get_logger

MAX_BODY_BYTES = 256 << 10
_MODULES = (workers, uploads, validators, trainers, views, operators, operations, public_objects, objects)
ROUTERS = tuple(module.router for module in _MODULES)
"""All routes, those that are asked for most often first."""


class _DocumentedApi(FastAPI):
    """An application whose OpenAPI document says which requests are signed, and how."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            describe_signatures(super().openapi())
        return super().openapi()


def build_routes(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None) -> FastAPI:
    """Return an application with all routes, which is enough for its OpenAPI document."""
    api = _DocumentedApi(
        title="Covey coordinator",
        version="1",
        description="HTTP API of a pool's coordinator. Every error has a stable code.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    for router in ROUTERS:
        api.include_router(router, responses=EVERY_ROUTE)
    return api


def build_api(ctx: Context) -> FastAPI:
    """The FastAPI application of one pool."""
    state = build_state(ctx)

    @asynccontextmanager
    async def run(_: FastAPI) -> AsyncIterator[None]:
        async with state.run():
            yield

    api = build_routes(run)
    api.state.api = state
    _add_errors(api, ctx)
    api.add_middleware(SignedRoutes, state=state, routers=ROUTERS)
    api.add_middleware(
        Admission,
        members=state.members,
        nonces=state.nonces,
        meters=state.meters,
        authority=ctx.config.signed_authority,
        chain_id=ctx.ledger.chain_id,
        max_body=MAX_BODY_BYTES,
        max_upload=ctx.params.max_submission_bytes,
        requests_per_s=ctx.config.requests_per_s,
        clock=ctx.clock,
    )
    return api


def _add_errors(api: FastAPI, ctx: Context) -> None:
    def answer(status: int, code: str, message: str) -> JSONResponse:
        body = ErrorBody(code=code, message=message, time=int(ctx.clock()))
        return JSONResponse(body.model_dump(), status_code=status)

    @api.exception_handler(CoveyError)
    async def on_error(_: Request, error: CoveyError) -> Response:
        status, body = describe_error(error, ctx.clock())
        return JSONResponse(body.model_dump(), status_code=status)

    @api.exception_handler(RequestValidationError)
    async def on_bad_body(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse(describe_bad_body(error.errors(), ctx.clock()).model_dump(), status_code=422)

    @api.exception_handler(Exception)
    async def on_defect(_: Request, error: Exception) -> Response:
        get_logger().error("defect", error=type(error).__name__, exc_info=error)
        return answer(500, "internal", "a defect of the coordinator; its log says more")

    @api.exception_handler(HTTPException)
    async def on_http_error(_: Request, error: HTTPException) -> Response:
        codes = {400: "bad_body", 404: "not_found", 405: "method_not_allowed", 413: "oversized"}
        status = 422 if error.status_code == 400 else error.status_code
        return answer(status, codes.get(error.status_code, "bad_request"), str(error.detail))
