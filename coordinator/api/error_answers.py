"""Answers of the API to errors: an `ErrorBody` with a stable code. What the operator's network looks like stays out."""

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
    """Return the status and the body of the answer to an error, and log what only the operator may see."""
    status, message = 500, "the coordinator's set-up is wrong; its log says more"
    if isinstance(error, ProtocolError):
        status, message = error.status, error.message
    elif isinstance(error, TransientError):
        status, message = 503, "the coordinator waits for something that it needs; try again"
        get_logger().warning("request cannot be answered now", code=error.code, message=error.message)
    else:
        get_logger().error("request failed", code=error.code, message=error.message)
    return status, ErrorBody(code=error.code, message=message, time=int(now))


def describe_bad_body(errors: Sequence[Mapping[str, Any]], now: float) -> ErrorBody:
    """Return the answer to a request that does not have the required form, which pydantic's errors describe."""
    wrong = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}".removeprefix(": ") for error in errors[:8])
    return ErrorBody(code="bad_body", message=wrong[:2000], time=int(now))


def add_error_handlers(api: FastAPI, clock: Callable[[], float]) -> None:
    """Have an application answer every error with an `ErrorBody`. `clock` returns Unix seconds."""

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
        get_logger().error("defect", error=type(error).__name__, exc_info=error)
        return answer(500, "internal", "a defect of the coordinator; its log says more")

    @api.exception_handler(HTTPException)
    async def on_http_error(_: Request, error: HTTPException) -> Response:
        codes = {400: "bad_body", 404: "not_found", 405: "method_not_allowed", 413: "oversized"}
        status = 422 if error.status_code == 400 else error.status_code
        return answer(status, codes.get(error.status_code, "bad_request"), str(error.detail))
