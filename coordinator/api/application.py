"""The coordinator's HTTP API: the application, its errors and the limit of a body.

Bodies are those of `covey.protocol.api`; every error is an ErrorBody with a stable code.  OpenAPI at /docs.
"""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.api import objects, public_objects, trainers, uploads, validators, views, workers
from coordinator.api.long_poll import LongPolls
from coordinator.context import Context
from covey.errors import CoveyError, ProtocolError, TransientError
from covey.protocol.api.common import ErrorBody
from covey.runtime.log import get_logger

MAX_BODY_BYTES = 256 << 10


def build_api(ctx: Context) -> FastAPI:
    """The FastAPI application of one pool."""
    api = FastAPI(title="Covey coordinator", version="1", description=__doc__ or "")
    api.state.ctx, api.state.polls = ctx, LongPolls()
    for module in (views, public_objects, objects, workers, uploads, validators, trainers):
        api.include_router(module.router)
    _add_errors(api, ctx)
    api.add_middleware(BodyLimit, small=MAX_BODY_BYTES, upload=ctx.params.max_submission_bytes)
    return api


def _add_errors(api: FastAPI, ctx: Context) -> None:
    def answer(status: int, code: str, message: str) -> JSONResponse:
        body = ErrorBody(code=code, message=message, time=int(ctx.clock()))
        return JSONResponse(body.model_dump(), status_code=status)

    @api.exception_handler(ProtocolError)
    async def on_protocol_error(_: Request, error: ProtocolError) -> Response:
        return answer(error.status, error.code, error.message)

    @api.exception_handler(TransientError)
    async def on_transient_error(_: Request, error: TransientError) -> Response:
        # The message names places inside the operator's network: it is for the log.
        get_logger().warning("request put off", code=error.code, message=error.message)
        return answer(503, error.code, "the coordinator waits for something that it needs; try again")

    @api.exception_handler(CoveyError)
    async def on_other_error(_: Request, error: CoveyError) -> Response:
        get_logger().error("request failed", code=error.code, message=error.message)
        return answer(500, error.code, "the coordinator's set-up is wrong; its log says more")

    @api.exception_handler(RequestValidationError)
    async def on_bad_body(_: Request, error: RequestValidationError) -> Response:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:8])
        return answer(422, "bad_body", wrong[:2000])

    @api.exception_handler(Exception)
    async def on_defect(_: Request, error: Exception) -> Response:
        get_logger().error("defect", error=type(error).__name__, exc_info=error)
        return answer(500, "internal", "a defect of the coordinator; its log says more")

    @api.exception_handler(HTTPException)
    async def on_http_error(_: Request, error: HTTPException) -> Response:
        codes = {400: "bad_body", 404: "not_found", 405: "method_not_allowed", 413: "oversized"}
        status = 422 if error.status_code == 400 else error.status_code
        return answer(status, codes.get(error.status_code, "bad_request"), str(error.detail))


class BodyLimit:
    """Refuses a request body over the limit before it is read whole: `upload` bytes for objects, `small` elsewhere."""

    def __init__(self, app: ASGIApp, *, small: int, upload: int) -> None:
        self._app, self._small, self._upload = app, small, upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._upload if scope["path"].startswith("/v1/objects/") else self._small
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _refuse_body(send, limit)
            return
        await self._app(scope, _count(receive, limit), send)


def _count(receive: Receive, limit: int) -> Callable[[], Awaitable[Message]]:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, f"a body is at most {limit} bytes")
        return message

    return counted


async def _refuse_body(send: Send, limit: int) -> None:
    response = JSONResponse({"code": "oversized", "message": f"a body is at most {limit} bytes", "time": 0}, 413)
    await send({"type": "http.response.start", "status": 413, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body})
