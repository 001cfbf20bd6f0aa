"""Error responses of the API: an `ErrorBody` with a stable code. It reveals nothing about the operator's network."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from covey.errors import CoveyError, ProtocolError, TransientError
from covey.protocol.api.common import ErrorBody
from covey.runtime.log import get_logger


def describe_error(error: CoveyError, now: float) -> tuple[int, ErrorBody]:
    """Return the status and the body of the response to an error, and log details for the operator only."""
    status, message = 500, "the coordinator's setup is wrong; see its log"
    if isinstance(error, ProtocolError):
        status, message = error.status, error.message
    elif isinstance(error, TransientError):
        status, message = 503, "something that the coordinator needs is not available now; try again"
        get_logger().warning("a request cannot be served now", code=error.code, message=error.message)
    else:
        get_logger().error("a request failed", code=error.code, message=error.message)
    return status, ErrorBody(code=error.code, message=message, time=int(now))


def describe_bad_body(errors: Sequence[Mapping[str, Any]], now: float) -> ErrorBody:
    """Return the body of the response to a request that does not have the required form, from pydantic's errors."""
    wrong = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}".removeprefix(": ") for error in errors[:8])
    return ErrorBody(code="bad_body", message=wrong[:2000], time=int(now))


def add_error_handlers(api: FastAPI, clock: Callable[[], float]) -> None:
    """Make an application respond to every error with an `ErrorBody`. `clock` returns Unix time in seconds."""

    def answer(status: int, code: str, message: str) -> JSONResponse:
        body = ErrorBody(code=code, message=message, time=int(clock()))
        return JSONResponse(body.model_dump(), status_code=status)

    @api.exception_handler(CoveyError)
    async def on_error(_: Request, error: CoveyError) -> Response:
        status, body = describe_error(error, clock())
        return JSONResponse(body.model_dump(), status_code=status)

    @api.exception_handler(RequestValidationError)
    async def on_bad_body(_: Request, error: RequestValidationError) -> Response:
        return JSONResponse(describe_bad_body(error.errors(), clock()).model_dump(), status_code=422)

    @api.exception_handler(Exception)
    async def on_defect(_: Request, error: Exception) -> Response:
        get_logger().error("a request met a defect of the coordinator", error=type(error).__name__, exc_info=error)
        return answer(500, "internal", "the coordinator has a defect; see its log")

    @api.exception_handler(HTTPException)
    async def on_http_error(_: Request, error: HTTPException) -> Response:
        codes = {400: "bad_body", 404: "not_found", 405: "method_not_allowed", 413: "oversized"}
        status = 422 if error.status_code == 400 else error.status_code
        return answer(status, codes.get(error.status_code, "bad_request"), str(error.detail))
