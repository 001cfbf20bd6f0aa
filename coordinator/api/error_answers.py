"""Answers of the API to errors: an `ErrorBody` with a stable code. What the operator's network looks like stays out."""

from collections.abc import Mapping, Sequence
from typing import Any

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
